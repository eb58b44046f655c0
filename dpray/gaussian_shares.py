"""Several Gaussian sums that share one budget, each in its own part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpray.contract import Run
from dpray.privacy.queries import GaussianSum


def gaussians_that_share(shares: Mapping[str, tuple[float, float]], run: Run) -> list[GaussianSum]:
    """A query for each name, of (share of the budget in squared Gaussian terms, sensitivity).

    Together they cost what the budget affords, or what one Gaussian at the user's noise would.
    """

    def with_noise(noise: float) -> list[GaussianSum]:
        return [
            GaussianSum(
                name=name, noise_multiplier=noise / math.sqrt(share), sensitivity=sensitivity
            )
            for name, (share, sensitivity) in shares.items()
        ]

    if run.noise_multiplier is not None:
        return with_noise(run.noise_multiplier)
    return run.world.from_first(lambda: run.ledger.calibrate_together(with_noise))
