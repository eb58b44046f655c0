"""The critic's gradient: how far one record moves it, and that generated examples move it freely.

Two gradients under one key have the same noise and the same batch, so their difference is that of
their clipped sums.
"""

import pytest
import torch

from dpray.adversarial.critic import set_critic_gradient
from dpray.adversarial.losses import LOSSES
from dpray.privacy.gradients import clipped_public_sum, noisy_gradient
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients
from dpray.world import SOLO

KEY, CLIP, BATCH, FAKES = RunKey.insecure(3), 0.1, 20.0, 8
LOSS = LOSSES["bce"]


def paid(clip_norm: float = CLIP) -> PaidQuery[PoissonGradients]:
    query = PoissonGradients(
        sample_rate=0.8,
        steps=1,
        clip_norm=clip_norm,
        noise_multiplier=1.3,
        expected_batch_size=BATCH,
    )
    return PaidQuery(query, entry=0)


@pytest.fixture
def fakes():
    return torch.randn(FAKES, 5, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def record(units):
    """The place of a record that is in the batch."""
    return int(KEY.poisson_rows("gradients/batch", 0, torch.arange(len(units)), 0.8)[3])


@pytest.fixture
def noisy_sum(critic, fakes):
    """What the optimiser gets, times the expected batch, of some private units."""

    def take(units, ids=None, clip_norm=CLIP, fakes=fakes):
        labels = torch.zeros(len(units), dtype=torch.long)
        set_critic_gradient(
            critic,
            lambda rows: LOSS.real(critic(units[rows], labels[rows])),
            lambda rows: LOSS.fake(critic(fakes[rows], labels[rows])),
            FAKES,
            torch.arange(len(units)) if ids is None else ids,
            0,
            paid=paid(clip_norm),
            key=KEY,
            world=SOLO,
            micro_batch=64,
        )
        return flat(critic) * BATCH

    return take


def flat(critic):
    return torch.cat([p.grad.flatten() for p in critic.parameters()]).double()


def moved(units, record):
    changed = units.clone()
    changed[record] = -1000 * units[record]
    return changed


def test_a_record_less_moves_the_sum_by_the_bound_and_a_higher_bound_is_noticed(
    noisy_sum, units, record
):
    kept = torch.arange(len(units)) != record
    ids = torch.arange(len(units))[kept]
    for clip_norm, within in ((CLIP, True), (1.1 * CLIP, False)):
        whole = noisy_sum(units, clip_norm=clip_norm)
        distance = (whole - noisy_sum(units[kept], ids, clip_norm)).norm()
        assert distance == pytest.approx(clip_norm, rel=1e-3)  # it is clipped, so all of it
        assert (distance <= CLIP * (1 + 1e-3)) == within


def test_a_record_changed_moves_the_sum_by_twice_the_bound_at_most(noisy_sum, units, record):
    distance = (noisy_sum(units) - noisy_sum(moved(units, record))).norm()
    assert CLIP * 1.01 < distance <= 2 * CLIP * (1 + 1e-3)
    wider = (noisy_sum(units, clip_norm=5) - noisy_sum(moved(units, record), clip_norm=5)).norm()
    assert wider > 2 * CLIP * (1 + 1e-3)


def test_generated_examples_that_copy_records_would_break_the_bound(noisy_sum, units, record):
    """Why they have to come from a generator that saw noisy gradients alone."""
    copies = units[record].expand(FAKES, -1)
    changed = moved(units, record)
    distance = (
        noisy_sum(units, fakes=copies) - noisy_sum(changed, fakes=changed[record].expand(FAKES, -1))
    ).norm()
    assert distance > 2 * CLIP * 1.05


def test_the_generated_half_is_the_mean_of_clipped_gradients_and_has_no_noise(
    noisy_sum, critic, units, fakes
):
    both = noisy_sum(units) / BATCH
    labels = torch.zeros(len(units), dtype=torch.long)
    noisy_gradient(
        critic,
        lambda rows: LOSS.real(critic(units[rows], labels[rows])),
        torch.arange(len(units)),
        0,
        paid=paid(),
        key=KEY,
    )
    half = both - flat(critic)
    params = list(critic.parameters())
    raw = []
    for row in range(FAKES):
        loss = LOSS.fake(critic(fakes[row : row + 1], labels[:1]))
        pieces = torch.autograd.grad(loss.sum(), params)
        raw.append(torch.cat([piece.flatten() for piece in pieces]).double())
    norms = torch.stack(raw).norm(dim=1, keepdim=True)
    clipped = torch.stack(raw) * (CLIP / norms).clamp_max(1.0)
    assert (norms > CLIP).any()
    torch.testing.assert_close(half, clipped.mean(0), rtol=0, atol=1e-6)
    assert not torch.allclose(half, torch.stack(raw).mean(0), atol=1e-3)


def test_a_sum_over_public_examples_leaves_no_gradient_behind(critic, fakes):
    labels = torch.zeros(FAKES, dtype=torch.long)
    total = clipped_public_sum(
        critic, lambda rows: critic(fakes[rows], labels[rows]), torch.arange(FAKES), CLIP, 3
    )
    assert 0 < total.norm() <= FAKES * CLIP * (1 + 1e-6)
    assert all(p.grad is None for p in critic.parameters())


@pytest.mark.parametrize("name", LOSSES)
def test_the_critic_wants_records_high_and_the_generator_what_the_critic_does_not(name):
    scores = torch.tensor([-1.0, 0.0, 2.0])
    loss = LOSSES[name]
    assert loss.real(scores).diff().lt(0).all()
    assert loss.fake(scores).diff().gt(0).all()
    assert torch.equal(loss.generator(scores), loss.real(scores))
    assert loss.real(scores).shape == scores.shape
