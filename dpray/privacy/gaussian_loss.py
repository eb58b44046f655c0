"""The privacy loss of a Gaussian under add-or-remove-one, a whole grid at a time.

dp_accounting asks for one point of its grid after another, which is most of the time that an
account takes. Here the same formulas run over arrays in the same order of operations, so the
numbers are the library's but for the last bits; the few points it treats apart are left to it.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

_NEAR_THE_EDGE = 1e-8  # relative, and wider than the 1e-9 at which the library says "at the edge"


def gaussian_pld(
    noise_multiplier: float, sample_rate: float, grid_step: float
) -> PrivacyLossDistribution:
    """The loss of one noisy sum of a Poisson sample, or of all records at a rate of 1.

    Guarantee: what `PrivacyLossDistribution.from_gaussian_mechanism` gives for
    add-or-remove-one: an upper bound at every epsilon.
    """

    def pmf(adjacency: AdjacencyType) -> PLDPmf:
        loss = _LossOnAGrid(noise_multiplier, sampling_prob=sample_rate, adjacency_type=adjacency)
        bounds = loss.connect_dots_bounds()
        lower = math.floor(bounds.epsilon_lower / grid_step)
        upper = math.ceil(bounds.epsilon_upper / grid_step)
        deltas = loss.deltas_at(np.arange(lower, upper + 1) * grid_step)
        return create_pmf_pessimistic_connect_dots_fixed_gap(grid_step, lower, upper, deltas)

    if sample_rate == 1:
        return PrivacyLossDistribution(pmf(AdjacencyType.REMOVE))
    return PrivacyLossDistribution(pmf(AdjacencyType.REMOVE), pmf(AdjacencyType.ADD))


class _LossOnAGrid(GaussianPrivacyLoss):
    def deltas_at(self, epsilons: np.ndarray) -> np.ndarray:
        """`get_delta_for_epsilon` of each."""
        deltas = np.zeros_like(epsilons)
        inside = np.ones_like(epsilons, dtype=bool)
        if self.sampling_prob < 1 and self.adjacency_type == AdjacencyType.ADD:
            inside = epsilons < -math.log1p(-self.sampling_prob)  # beyond which no loss lies
        elif self.sampling_prob < 1:
            inside = epsilons > math.log1p(-self.sampling_prob)  # below which no loss lies
            deltas[~inside] = -np.expm1(epsilons[~inside])
        losses = epsilons[inside]
        cuts = self._inverse_of_all(losses)
        deltas[inside] = self.mu_upper_cdf(cuts) - np.exp(losses + self.mu_lower_log_cdf(cuts))
        return np.clip(deltas, 0, 1)

    def _inverse_of_all(self, losses: np.ndarray) -> np.ndarray:
        """`inverse_privacy_loss` of each: the largest outcome at which the loss is as large."""
        if self.sampling_prob == 1:
            return np.asarray(self._inverse_privacy_loss_without_subsampling_remove(losses))
        sign = -1 if self.adjacency_type == AdjacencyType.ADD else 1
        edge, removed = math.log(1 - self.sampling_prob), sign * losses
        absent = np.log(-(1 - 1 / self.sampling_prob))
        drawn = removed + np.log(1 / self.sampling_prob)
        far = removed - edge > _NEAR_THE_EDGE * np.maximum(np.abs(removed), -edge)
        plain = far & (drawn > absent) & (losses != 0)
        with np.errstate(all="ignore"):  # of points that are not plain, and replaced below
            unsampled = sign * (drawn + np.log1p(-np.exp(absent - drawn)))
        if sign < 0:
            cuts = self._inverse_privacy_loss_without_subsampling_add(unsampled)
        else:
            cuts = self._inverse_privacy_loss_without_subsampling_remove(unsampled)
        cuts[~plain] = [self.inverse_privacy_loss(loss) for loss in losses[~plain]]
        return np.asarray(cuts)
