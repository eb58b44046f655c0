"""What a release is worth: accuracy on a test set, public or paid for."""

from __future__ import annotations

from dpray.contract import Classifier, Release, Run
from dpray.data.records import Dataset
from dpray.errors import BadInput
from dpray.evaluation.metrics import Metric, Source
from dpray.privacy.ledger import HOLD_OUT
from dpray.privacy.mechanisms import noisy_sum
from dpray.privacy.queries import GaussianSum

_HOLD_OUT_QUERY = "hold-out accuracy"
# Where the run has no epsilon to calibrate to: epsilon 1 at delta 1e-5 for hold-out records.
_NOISE_WITHOUT_BUDGET = 3.7307


def evaluate(release: Release, dataset: Dataset, run: Run) -> list[Metric]:
    if isinstance(release, Classifier):
        return [_test_accuracy(release, dataset, run)]
    raise BadInput(f"no evaluation for a {release.kind}")


def _test_accuracy(release: Classifier, dataset: Dataset, run: Run) -> Metric:
    """Accuracy on the test set: as it is where that is public, else as a paid, noisy count.

    Guarantee: a hold-out record changes the count of correct predictions by at most one, and
    hold-out records are never trained on, so the charge stands beside that of the training.
    """
    test = dataset.test
    if dataset.test_is_public:
        correct = (release.predict(test.pixels) == test.labels).double().mean()
        return Metric("test_accuracy", float(correct), Source.PUBLIC_TEST)
    query = _hold_out_query(run)
    paid = run.ledger.pay(query, part=HOLD_OUT)
    raw_correct = (release.predict(test.pixels) == test.labels).double().sum().reshape(1)
    noisy_correct = noisy_sum(raw_correct, paid=paid, key=run.key)
    accuracy = float(noisy_correct) / len(test)
    return Metric("test_accuracy", min(max(accuracy, 0.0), 1.0), Source.NOISY_HOLD_OUT)


def _hold_out_query(run: Run) -> GaussianSum:
    """All of the budget: hold-out records pay for nothing else."""
    if not run.ledger.budget.is_finite:
        return GaussianSum(name=_HOLD_OUT_QUERY, noise_multiplier=_NOISE_WITHOUT_BUDGET)
    return run.ledger.calibrate(
        lambda noise: GaussianSum(name=_HOLD_OUT_QUERY, noise_multiplier=noise), part=HOLD_OUT
    )
