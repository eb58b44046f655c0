"""Empirical audits: they can show that a promise is broken, never that it is kept.

The profile audit takes scores of canaries that were in the data and of canaries that were not,
and asks whether any test that tells them apart is better than the run's own ledger allows. The
canaries' scores must be independent: one coordinate of a linear model each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
from scipy.stats import beta

from dpray.privacy.accounting import Adjacency, delta_of

_EPSILONS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Audit:
    margin: float  # how far the best attack goes beyond what the ledger allows; above 0 is a breach
    true_positive_rate: float  # lower confidence bound
    false_positive_rate: float  # upper confidence bound
    confidence: float

    @property
    def violated(self) -> bool:
        return self.margin > 0

    def __str__(self) -> str:
        if self.violated:
            return f"VIOLATION: an attack beats the ledger by {self.margin:.3f}"
        return f"no violation found at confidence {100 * self.confidence:g} %"


def profile_audit(
    scores_in: np.ndarray,
    scores_out: np.ndarray,
    events: Sequence[dp.DpEvent],
    *,
    alpha: float = 1e-3,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> Audit:
    """Tests `score > threshold` against the profile of `events`, both ways round.

    The threshold is chosen on the first half of the canaries and judged on the second, with
    Clopper-Pearson bounds at `alpha` in all: for a run that keeps its promise the margin is
    above 0 with probability at most `alpha`.
    """
    deltas = np.array(delta_of(events, _EPSILONS, adjacency))
    growth = np.exp(_EPSILONS)

    def allowed(false_positives: float) -> float:
        return float(np.min(deltas + growth * false_positives))

    audits = []
    for sign in (1.0, -1.0):
        # Above a threshold "in" is guessed; turned round, "out" is: both are attacks.
        hits, misses = (sign * scores_in, sign * scores_out)
        if sign < 0:
            hits, misses = misses, hits
        choose_hits, judge_hits = hits[::2], hits[1::2]
        choose_misses, judge_misses = misses[::2], misses[1::2]
        candidates = np.quantile(np.concatenate([choose_hits, choose_misses]), _QUANTILES)
        gains = [
            _lower((choose_hits > c).sum(), len(choose_hits), alpha)
            - allowed(_upper((choose_misses > c).sum(), len(choose_misses), alpha))
            for c in candidates
        ]
        threshold = candidates[int(np.argmax(gains))]
        # Two attacks with two bounds each share alpha.
        true = _lower((judge_hits > threshold).sum(), len(judge_hits), alpha / 4)
        false = _upper((judge_misses > threshold).sum(), len(judge_misses), alpha / 4)
        audits.append(Audit(true - allowed(false), true, false, 1 - alpha))
    return max(audits, key=lambda audit: audit.margin)


_QUANTILES = np.linspace(0.01, 0.99, 99)


def _lower(successes: int, trials: int, alpha: float) -> float:
    return 0.0 if successes == 0 else float(beta.ppf(alpha, successes, trials - successes + 1))


def _upper(successes: int, trials: int, alpha: float) -> float:
    if successes == trials:
        return 1.0
    return float(beta.ppf(1 - alpha, successes + 1, trials - successes))
