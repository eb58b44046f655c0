"""What a row costs: with fixed noise before anything is trained, and on the way to its end.

The steps and the sample rate follow from the settings and the public number of records; of a run
that is over, from the ledger on its card.
"""

from __future__ import annotations

import math

import dp_accounting as dp

from dpray.data.datasets import BUILT_IN
from dpray.errors import BadInput
from dpray.methods.dp_vae import DPVae
from dpray.privacy.accounting import cost_of
from dpray.privacy.ledger import Entry, Ledger
from dpray.privacy.queries import GaussianSum, PoissonGradients
from tables.rows import Row

PSG_QUERY = "psg"  # its name on the ledger


def epsilon_of(row: Row) -> float | None:
    """An upper bound on epsilon of one run, or None where the row fixes no noise."""
    if row.noise_multiplier is None:
        return None
    return cost_of(_events(row, row.noise_multiplier), row.spec(0).delta).epsilon


def _events(row: Row, noise_multiplier: float) -> list[dp.DpEvent]:
    records = BUILT_IN[row.dataset].num_train
    batch_size = min(row.settings["batch_size"], records)
    gradients = PoissonGradients(
        sample_rate=batch_size / records,
        steps=round(row.settings["epochs"] * records / batch_size),
        clip_norm=row.settings["clip_norm"],
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch_size,
    )
    if row.settings.get("class_model") != "noisy-statistics":
        return [gradients.event]
    noise = row.settings.get("statistics_noise", DPVae.statistics_noise)
    return [GaussianSum(name="class statistics", noise_multiplier=noise).event, gradients.event]


def epsilon_after(queries: int, ledger: Ledger) -> float | None:
    """Epsilon of the first `queries` noisy gradients of all that a run of PSG paid for.

    What the ledger holds besides is counted in full. None: no noise was added.
    """
    entries = [Entry(e.name, e.part, e.steps, _first(queries, e), e.bound) for e in ledger.entries]
    epsilon = Ledger(ledger.budget, ledger.adjacency, entries).epsilon
    return epsilon if math.isfinite(epsilon) else None


def _first(queries: int, entry: Entry) -> dp.DpEvent:
    match entry.event:
        case dp.SelfComposedDpEvent(event=one, count=count) if entry.name == PSG_QUERY:
            if not 0 <= queries <= count:
                raise BadInput(f"{queries} queries are not among the {count} that were paid for")
            return dp.SelfComposedDpEvent(one, queries) if queries else dp.NoOpDpEvent()
    return entry.event
