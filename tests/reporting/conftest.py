"""Recorded runs with real cards, and the report about them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dpray.evaluation.recorded import RecordedRun
from dpray.privacy.accounting import Budget
from dpray.privacy.card import make_card
from dpray.privacy.ledger import HOLD_OUT, Ledger
from dpray.privacy.queries import GaussianSum
from dpray.reporting.report import write_report
from dpray.spec import RunSpec


@pytest.fixture
def make_recorded(tmp_path):
    def make(
        run_id="run-1",
        *,
        method="dp-sgd",
        kind="classifier",
        dataset="mnist",
        seed=0,
        noise=4.0,
        settings=None,
        for_tests=False,
        samples=None,
        noisy=frozenset(),
        **metrics,
    ) -> RecordedRun:
        ledger = Ledger.create(
            tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl",
            Budget(100, 1e-5),
            subject={},
            adjacency=RunSpec(method=method, dataset=dataset).adjacency,
        )
        ledger.pay(GaussianSum(name="class sums", noise_multiplier=noise))
        ledger.pay(GaussianSum(name="hold-out count", noise_multiplier=2 * noise), part=HOLD_OUT)
        card = make_card(
            run_id=run_id,
            method=method,
            dataset=dataset,
            ledger=ledger,
            facts={},
            public={},
            num_records=60_000,
            for_tests=for_tests,
        )
        return RecordedRun(
            run_id=run_id,
            method=method,
            kind=kind,
            dataset=dataset,
            seed=seed,
            settings=settings or {},
            metrics=metrics or {"test_accuracy": 0.5},
            noisy=noisy,
            card=card,
            started=datetime.now(UTC),
            samples=samples,
        )

    return make


@pytest.fixture
def written(tmp_path):
    """Writes a report and gives its main page."""

    def write(*runs: RecordedRun) -> str:
        return write_report(runs, tmp_path / "report").read_text()

    return write


@pytest.fixture
def compared(written, tmp_path):
    """Writes a report and gives its comparison."""

    def write(*runs: RecordedRun) -> str:
        written(*runs)
        return (tmp_path / "report" / "comparison.html").read_text()

    return write
