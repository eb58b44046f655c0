"""Tables of published work, each a file here that says which runs stand beside its figures.

A table exports `TABLE`; `find` looks it up by name. What runs, keeps and prints rows is shared.
"""

from __future__ import annotations

from dpray.errors import unknown
from tables import baselines, dp2vae, dpmi, match, psg, seed0
from tables.rows import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        seed0.TABLE,
        dp2vae.TABLE,
        psg.TABLE,
        dpmi.TABLE,
        baselines.TABLE,
        match.TABLE,
    )
}


def find(name: str) -> Table:
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]
