"""What a row of dpmi costs: at a fixed noise before it has run, and on the way to its end.

Before a run the number of private records is that of even classes and parts, so that nothing has to
be read for it; the ledger of a run says what was truly spent.
"""

from __future__ import annotations

import math

import dp_accounting as dp

from dpray.api import with_public_words
from dpray.data.datasets import BUILT_IN
from dpray.data.words import LABELLING, DatasetWord
from dpray.execute import check
from dpray.methods.dpmi import Dpmi
from dpray.privacy.accounting import cost_of
from dpray.privacy.ledger import Entry, Ledger
from dpray.privacy.queries import PoissonGradients
from tables.rows import Row

METHOD = "dpmi"  # and the name of its query on the ledger


def epsilon_of_latents(row: Row) -> float | None:
    """About an upper bound on epsilon of one run, or None where the row fixes no noise."""
    if row.noise_multiplier is None:
        return None
    method = check(row.spec(0))
    assert isinstance(method, Dpmi)
    records = about_num_records(row)
    if method.classes == "per-class":
        records = round(records / len(_word(row).classes or BUILT_IN[_word(row).base].class_names))
    batch_size = min(method.batch_size, records)
    gradients = PoissonGradients(
        sample_rate=batch_size / records,
        steps=method.steps or max(1, round(method.epochs * records / batch_size)),
        clip_norm=method.clip_norm,
        noise_multiplier=row.noise_multiplier,
        expected_batch_size=batch_size,
    )
    return cost_of([gradients.event], row.spec(0).delta, coarse=True).epsilon


def about_num_records(row: Row) -> int:
    """Of the private records, as if every class had as many and every part its share."""
    word = _word(row)
    entry = BUILT_IN[word.base]
    classes = 1.0 if word.classes is None else len(word.classes) / len(entry.class_names)
    part = {None: 1.0, "rest": 1 - LABELLING, "labelling": LABELLING}[word.part]
    return round(entry.num_train * classes * part)


def epsilon_after(steps: int, ledger: Ledger) -> float | None:
    """Epsilon of the first `steps` noisy gradients of a run. None: no noise was added.

    What the ledger holds besides is counted in full.
    """
    entries = [Entry(e.name, e.part, e.steps, _first(steps, e), e.bound) for e in ledger.entries]
    epsilon = Ledger(ledger.budget, ledger.adjacency, entries).epsilon
    return epsilon if math.isfinite(epsilon) else None


def _first(steps: int, entry: Entry) -> dp.DpEvent:
    match entry.event:
        case dp.SelfComposedDpEvent(event=one, count=count) if entry.name == METHOD:
            return dp.SelfComposedDpEvent(one, min(steps, count)) if steps else dp.NoOpDpEvent()
    return entry.event


def _word(row: Row) -> DatasetWord:
    return DatasetWord.parse(with_public_words(row.spec(0)).dataset)
