"""The page's style: no outside font or file, light and dark, wide, narrow and printed."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --line: #d3dae1; --ink: #1d2733; --muted: #5b6773;
  --link: #0b5cad; --good: #14652f; --bad: #a3161b;
  --method-0: #0b5fa5; --method-1: #b5460f; --method-2: #0a7a55; --method-3: #93307a;
  --method-4: #7a5c00; --method-5: #3d3fa8; --method-6: #a0203c; --method-7: #39626b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12171d; --panel: #1b222a; --line: #36414d; --ink: #e6ebf0; --muted: #a5b1bd;
    --link: #7db8f5; --good: #7fd69a; --bad: #ff9a94;
    --method-0: #6fb3ef; --method-1: #f0965f; --method-2: #56c99f; --method-3: #e08fcc;
    --method-4: #d9b64a; --method-5: #a3a5f5; --method-6: #f28ba0; --method-7: #8fbcc6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem 1.25rem 3rem; max-width: 82rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0 0 .25rem; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 3px solid var(--ink); }
h2, h3, figcaption, td, th { overflow-wrap: anywhere; }
h3 { margin: 2rem 0 .5rem; }
p, figcaption, .protocols { max-width: 46rem; }
a { color: var(--link); }
small, .made, figcaption, .protocols { color: var(--muted); }
small { font-size: .82rem; font-weight: 400; }
.notice { padding: .6rem .9rem; border-left: 4px solid var(--bad); background: var(--panel); }
table { width: 100%; margin: 0 0 1.25rem; border-collapse: collapse; font-size: .92rem; }
caption { padding: .3rem 0; text-align: left; color: var(--muted); }
caption b { color: var(--ink); }
th, td {
  padding: .45rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums;
}
thead th { border-bottom: 2px solid var(--muted); font-size: .82rem; overflow-wrap: normal; }
td { overflow-wrap: normal; }
td small { overflow-wrap: anywhere; min-width: 4rem; }
tbody th { font-weight: 400; min-width: 8rem; }
tfoot td { border-bottom: 0; }
td small, th small { display: block; }
.number { white-space: nowrap; }
.spread { display: block; white-space: nowrap; font-size: .82rem; color: var(--muted); }
.settings { display: block; color: var(--muted); }
summary { cursor: pointer; }
.settings summary { font-size: .82rem; color: var(--link); }
.card-link { display: block; white-space: nowrap; }
.yes { color: var(--good); font-weight: 600; }
.no { color: var(--bad); font-weight: 700; }
figure { margin: 0 0 1.25rem; }
.wide { max-width: 72rem; }
figcaption { padding-top: .5rem; }
figure svg { display: block; width: 100%; height: auto; font-family: inherit; }
.narrow { display: none; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
.samples figure { margin: 0; padding: .6rem; background: var(--panel); border-radius: .4rem; }
.samples img { display: block; width: 100%; height: auto; background: #fff; }
.samples figcaption { padding-top: .4rem; font-size: .88rem; }
@media (max-width: 44rem) {
  body { padding: .75rem .9rem 2rem; }
  .wide { display: none; }
  .narrow { display: block; }
  table, caption, tbody, tfoot, tr, th, td { display: block; width: auto; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tbody tr {
    margin: 0 0 .75rem; padding: .5rem .75rem; background: var(--panel);
    border: 1px solid var(--line); border-radius: .4rem;
  }
  th, td { padding: .15rem 0; border: 0; }
  tbody th { font-size: 1.02rem; }
  tbody td { display: flex; gap: .75rem; }
  tbody td::before { content: attr(data-label); flex: 0 0 7.2rem; color: var(--muted); }
  tbody td.nothing { display: none; }
  .spread { display: inline; font-size: inherit; color: inherit; }
  tbody td > span { flex: 1 1 auto; min-width: 0; }
}
@media print {
  :root { --paper: #fff; --panel: #fff; --ink: #000; --muted: #444; --line: #999; --link: #000; }
  body { max-width: none; font-size: 10pt; }
  tr, figure { break-inside: avoid; }
  .settings summary { display: none; }
}
"""
