"""`dpray sample`: images from a registered synthesizer, a run or a release folder.

What a synthesizer draws follows from a release that is paid for: drawing costs no epsilon,
however much is drawn. The same seed and labels give the same images here, from
`Synthesizer.sample` and from the registered MLflow model.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpray.cli.output import print_json, say
from dpray.cli.releases import MODEL_HELP, open_release
from dpray.contract import Synthesizer
from dpray.data.npz import drawn_from
from dpray.errors import BadData, BadInput, unknown
from dpray.privacy.card import Card
from dpray.progress import Progress, silent, terminal
from dpray.reporting.drawn import MARK, write_folder, write_npz
from dpray.reporting.grid import as_bytes
from dpray.storage import clear_errors

_EPILOG = """\
examples:
  dpray sample dpray-mnist-dp-merf --count 1000 --out synthetic.npz
  dpray sample dpray-mnist-dp-merf/2 --count 60 --labels 3 7 --seed 1 --out threes-and-sevens
  dpray run sgd --dataset synthetic.npz               train on what was drawn

A grid of the first images is written beside FILE.npz as FILE.png, and into FOLDER as grid.png.
"""
_AT_ONCE = 1000  # floats in memory; also the batch of Synthesizer.sample, so the draws are its own
_WORTH_A_BAR = 10_000
_OTHER_FILES = {".npy", ".png", ".jpg", ".jpeg", ".zip", ".gz", ".tar", ".pt", ".json"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "sample",
        description="Draw images from a synthesizer, into an .npz file or a folder of PNG files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--count", type=int, required=True, metavar="N", help="images in all")
    parser.add_argument(
        "--labels", nargs="+", metavar="L", help="class names or indices (default: all, evenly)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default 0)")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="FILE.npz, or a folder to make"
    )
    parser.add_argument("--force", action="store_true", help="replace what an earlier sample wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=sample_command)


def sample_command(args: argparse.Namespace) -> int:
    if args.count < 1:
        raise BadInput(f"--count {args.count} is out of range: it must be at least 1")
    if not 0 <= args.seed < 1 << 63:
        raise BadInput(f"--seed {args.seed} is out of range: it must be 0 to 2^63 - 1")
    out = Path(os.path.expanduser(args.out))
    with clear_errors(out):
        _refuse_out(out, force=args.force)
    opened = open_release(args.model)
    release, card = opened.release, opened.card
    if not isinstance(release, Synthesizer):
        raise BadInput(f"{args.model} is a {release.kind}: it draws no images; name a synthesizer")
    classes = _classes(args.labels, release.class_names)
    _refuse_what_does_not_fit(args.count, release, out)
    _say_cost(args.model, card)

    each, more = divmod(args.count, len(classes))
    counts = [each + (place < more) for place in range(len(classes))]
    labels = torch.tensor(classes).repeat_interleave(torch.tensor(counts))
    progress = terminal if args.count >= _WORTH_A_BAR else silent
    images = draw(release, labels, args.seed, progress)

    # Both readers of such data want a record of every class: classes not drawn are not named.
    present = sorted(c for c, count in zip(classes, counts, strict=True) if count)
    names = [release.class_names[c] for c in present]
    numbers = np.searchsorted(present, labels.numpy())
    summary = {
        "model": args.model,
        "count": args.count,
        "seed": args.seed,
        "class_names": names,
        "privacy": None if card is None else _privacy(card),
    }
    if out.suffix.lower() == ".npz":
        if len(names) < len(release.class_names):
            say(f"note: labels in {out.name} count the drawn classes alone: {_counted(names)}")
        grid = write_npz(out, images, numbers, names, summary)
    else:
        grid = write_folder(out, images, numbers, names, summary, progress)
    if args.json:
        print_json({**summary, "out": str(out), "grid": str(grid)})
    else:
        print(f"{out}\n{grid}")
    return 0


def draw(
    release: Synthesizer, labels: torch.Tensor, seed: int, progress: Progress = silent
) -> np.ndarray:
    """(N, C, H, W) bytes, the same as from one `release.sample`, but never all as floats."""
    rng = torch.Generator().manual_seed(seed)
    images = np.empty((len(labels), *release.shape), np.uint8)
    with progress("drawing", len(labels)) as bar:
        for start in range(0, len(labels), _AT_ONCE):
            part = labels[start : start + _AT_ONCE]
            images[start : start + len(part)] = as_bytes(release.sample(part, rng, _AT_ONCE))
            bar.advance(len(part))
    return images


def _classes(words: Sequence[str] | None, names: Sequence[str]) -> list[int]:
    """Indices of what was named; all classes where nothing was. A name goes before an index."""
    known = {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    for word in words or ():
        if word not in known:
            raise unknown("class", word, names)
    return list(dict.fromkeys(known[word] for word in words)) if words else list(range(len(names)))


def _refuse_out(out: Path, *, force: bool) -> None:
    """Before the model is even looked up: a place that cannot be written, or holds something."""
    if not os.path.isdir(out.parent):
        raise BadInput(f"--out {out}: there is no folder {out.parent}")
    if out.suffix.lower() == ".npz":
        for path in (out, out.with_suffix(".png")):
            if os.path.isdir(path) or (os.path.lexists(path) and not force):
                raise BadInput(f"{path} is there already; choose another --out, or add --force")
        if force and any(os.path.lexists(p) for p in (out, out.with_suffix(".png"))):
            _refuse_foreign(out)
        return
    if out.suffix.lower() in _OTHER_FILES:
        raise BadInput(f"--out {out} is neither an .npz file nor a folder")
    if not os.path.lexists(out) or (
        out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    ):
        return
    if not force:
        raise BadInput(f"{out} is there already; choose another --out, or add --force")
    if out.is_symlink() or not (out / MARK).is_file():
        raise BadInput(f"{out} was not written by dpray sample: --force does not replace it")


def _refuse_foreign(out: Path) -> None:
    """Only what an earlier sample wrote is replaced: the name may be that of somebody's data."""
    try:
        ours = out.is_file() and drawn_from(out) is not None
    except BadData:
        ours = False
    if not ours:
        raise BadInput(f"{out} was not written by dpray sample: --force does not replace it")


def _refuse_what_does_not_fit(count: int, release: Synthesizer, out: Path) -> None:
    needed, free = count * int(np.prod(release.shape)), shutil.disk_usage(out.parent).free
    if needed > free:
        raise BadInput(
            f"--count {count} takes {needed / 1e9:.3g} GB and {out.parent} has {free / 1e9:.3g} GB"
        )


def _say_cost(model: str, card: Card | None) -> None:
    if card is None:
        say("warning: a release folder has no privacy card: what it cost is not known here")
        return
    epsilon = "infinite (no privacy)" if card.epsilon is None else f"{card.epsilon:.4g}"
    say(f"{model}: epsilon {epsilon}, delta {card.delta:g}, {card.adjacency}, {card.covers}")
    if not card.fit_for_release:
        say(f"warning: not fit for release: {'; '.join(card.reasons_against)}")


def _privacy(card: Card) -> dict[str, Any]:
    return {
        "run_id": card.run_id,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "fit_for_release": card.fit_for_release,
        "reasons_against": list(card.reasons_against),
    }


def _counted(names: Sequence[str]) -> str:
    shown = ", ".join(f"{number} is {name!r}" for number, name in enumerate(names[:5]))
    return shown + (", ..." if len(names) > 5 else "")
