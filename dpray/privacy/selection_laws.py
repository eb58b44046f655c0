"""How many trials a search makes: a law that is public, and a draw from it that stays secret.

Keeping the best of a fixed number of trials costs as much as publishing all of them. Keeping
the best of a random number costs far less, where the number is drawn once, before the first
trial, and is never told (Liu and Talwar 2019, Papernot and Steinke 2022). The heavier the tail
of the law, the cheaper: logarithmic, geometric, then Poisson, which may also say "no trial".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import brentq

from dpray.errors import BadInput
from dpray.privacy.noise import RunKey

_LARGEST_MEAN, _LARGEST_SHAPE = 10_000, 100
_FINEST_DRAW = 2.0**-64  # a draw is one 64-bit number: what is rarer than this never happens


@dataclass(frozen=True)
class TrialLaw:
    """The law of K, the number of trials: truncated negative binomial, or Poisson.

    `shape` is its eta: 0 is logarithmic, 1 geometric, infinity Poisson.
    """

    shape: float
    mean: float

    def __post_init__(self) -> None:
        if not (0 <= self.shape <= _LARGEST_SHAPE or self.shape == math.inf):
            raise BadInput(
                f"shape {self.shape:g} is out of range: from 0 to {_LARGEST_SHAPE}, or infinite"
            )
        if not 1 <= self.mean <= _LARGEST_MEAN:
            raise BadInput(
                f"a mean of {self.mean:g} trials is out of range: from 1 to {_LARGEST_MEAN}"
            )

    @classmethod
    def geometric(cls, mean: float) -> TrialLaw:
        return cls(1.0, mean)

    @classmethod
    def logarithmic(cls, mean: float) -> TrialLaw:
        return cls(0.0, mean)

    @classmethod
    def negative_binomial(cls, mean: float, shape: float) -> TrialLaw:
        """Truncated: it never says "no trial"."""
        if shape == math.inf:
            raise BadInput("shape inf is out of range: the limit is TrialLaw.poisson")
        return cls(shape, mean)

    @classmethod
    def poisson(cls, mean: float) -> TrialLaw:
        """May say "no trial": the search then returns a default that was public before."""
        return cls(math.inf, mean)

    @property
    def name(self) -> str:
        known = {0.0: "logarithmic", 1.0: "geometric", math.inf: "poisson"}
        return known.get(self.shape, f"negative binomial, shape {self.shape:g}")

    @property
    def gamma(self) -> float:
        """The chance to halt of a truncated negative binomial; 1 means one trial, always."""
        if self.shape == math.inf:
            raise BadInput("a Poisson law has no gamma: its mean says it all")
        return _gamma(self.shape, self.mean)

    @property
    def default_cap(self) -> int:
        """The hard limit that costs nothing: a 64-bit draw does not reach beyond it."""
        tails = _tails(self.shape, self.mean)
        return max(1, len(tails) - int(np.searchsorted(tails[::-1], _FINEST_DRAW, side="right")))

    def probability_above(self, cap: int) -> float:
        """P(K > cap): how often a search that stops at `cap` is cut short."""
        if cap < 0:
            raise BadInput(f"a cap of {cap} trials is out of range: at least 0")
        tails = _tails(self.shape, self.mean)
        return float(tails[min(cap, len(tails) - 1)])

    def draw(self, key: RunKey, *, cap: int | None = None) -> int:
        """The number of trials of one search: the same for the same key, after a crash too.

        Guarantee: a keyed function of nothing but the secret key, so it tells nothing of the
        data; it hides what the search costs only as long as nobody learns it.
        """
        bits = key.uniform_bits("number of trials", 0, torch.zeros(1, dtype=torch.int64))
        return int(self.draw_from(bits, cap=cap)[0])

    def draw_from(self, bits: np.ndarray, *, cap: int | None = None) -> np.ndarray:
        """One K for every uniform 64-bit number, at most `cap`.

        Guarantee: K > k where the number, as a fraction, is below P(K > k). Small fractions
        keep all their digits, so the tail is drawn as exactly as the middle.
        """
        limit = self.default_cap if cap is None else cap
        if limit < 1:
            raise BadInput(f"a cap of {limit} trials is out of range: at least 1")
        fractions = (np.asarray(bits, dtype=np.uint64).astype(np.float64) + 0.5) * 2.0**-64
        tails = _tails(self.shape, self.mean)
        drawn = len(tails) - np.searchsorted(tails[::-1], fractions, side="right")
        return np.clip(drawn, 0 if self.shape == math.inf else 1, limit)


@lru_cache(maxsize=256)
def _gamma(shape: float, mean: float) -> float:
    if shape == 1:
        return 1 / mean
    if mean < 1 + 1e-9:
        return 1.0

    def excess(rate: float) -> float:  # of the mean where gamma = exp(-rate)
        below_one = -math.expm1(-shape * rate) / shape if shape > 0 else rate
        return math.expm1(rate) / below_one - mean

    return math.exp(-brentq(excess, 1e-12, 40.0, xtol=1e-14, rtol=1e-14))


@lru_cache(maxsize=64)
def _tails(shape: float, mean: float) -> np.ndarray:
    """P(K > k) for k = 0, 1, ... until it is far below what a draw can tell from zero.

    The ratio of neighbouring probabilities is simple for all laws; sums go from the small end.
    """
    count = 1024
    while True:
        k = np.arange(count, dtype=np.float64)  # from k to k + 1
        with np.errstate(divide="ignore"):
            if shape == math.inf:
                start, ratios = -mean, mean / (k + 1)
            else:
                gamma = _gamma(shape, mean)
                # K = 0 has no chance; the first ratio leads from there to P(K = 1).
                start, ratios = 0.0, (k + shape) / (k + 1) * (1 - gamma)
                ratios[0] = mean * gamma ** (shape + 1)
            masses = np.exp(start + np.cumsum(np.log(ratios)))  # of k + 1
        worst = ratios[-1] if shape == math.inf else max(ratios[-1], 1 - _gamma(shape, mean))
        rest = masses[-1] * worst / (1 - worst) if worst < 1 else math.inf
        if rest < _FINEST_DRAW * 1e-6:
            return np.minimum(np.append(rest + np.cumsum(masses[::-1])[::-1], rest), 1.0)
        count *= 2
