"""The linear-canary profile audit through the real loop, and mutations that it must catch.

reference/privacy.md 7.2 (2, 3): m = 2000 canaries, half of them in, q = 1/2, T = 20, sigma = 2.
"""

import numpy as np
import pytest
import torch
from torch import nn

from dpray.privacy import gradients
from dpray.privacy.accounting import Budget, cost_of
from dpray.privacy.audit import profile_audit
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.ledger import Ledger
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PoissonGradients

CANARIES, STEPS, NOISE, CLIP, RATE = 2000, 20, 2.0, 1.5, 0.5
QUERY = PoissonGradients(
    name="canaries",
    sample_rate=RATE,
    steps=STEPS,
    clip_norm=CLIP,
    noise_multiplier=NOISE,
    expected_batch_size=1.0,
)


def train_on_canaries(key: RunKey) -> tuple[np.ndarray, np.ndarray]:
    """The scores of canaries that were in the data and of those that were not."""
    inside = torch.rand(CANARIES, generator=torch.Generator().manual_seed(5)) < 0.5
    ids = torch.nonzero(inside).flatten()
    model = nn.Linear(CANARIES, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    paid = Ledger(Budget(6.0, 1e-5)).pay(QUERY)

    def losses(rows):
        examples = torch.zeros(len(rows), CANARIES)
        examples[torch.arange(len(rows)), ids[rows]] = 100.0
        return -model(examples).flatten()

    for step in range(STEPS):
        noisy_gradient(model, losses, ids, step, paid=paid, key=key)
        optimizer.step()
    scores = model.weight.detach().flatten().numpy()
    return scores[inside], scores[~inside]


def test_the_claim_is_the_references():
    assert cost_of([QUERY.event], 1e-5).epsilon == pytest.approx(5.689, abs=2e-3)


def test_the_real_loop_keeps_its_promise():
    scores_in, scores_out = train_on_canaries(RunKey.insecure(1))
    audit = profile_audit(scores_in, scores_out, [QUERY.event])
    assert not audit.violated
    assert "no violation found at confidence 99.9 %" in str(audit)
    spread = np.sqrt(STEPS) * NOISE * CLIP
    assert abs(scores_out.std() / spread - 1) < 5 / np.sqrt(2 * len(scores_out))
    mean_error = np.sqrt(spread**2 + STEPS * RATE * (1 - RATE) * CLIP**2) / np.sqrt(len(scores_in))
    assert abs(scores_in.mean() - RATE * STEPS * CLIP) < 5 * mean_error


def halve_the_noise(patch):
    honest = RunKey.normals
    patch.setattr(RunKey, "normals", lambda *a, **k: honest(*a, **k) * 0.5)


def switch_clipping_off(patch):
    patch.setattr(gradients, "clip_factors", lambda norms, clip_norm: torch.ones_like(norms))


def double_the_sampling_rate(patch):
    honest = RunKey.poisson_rows
    patch.setattr(
        RunKey, "poisson_rows", lambda self, p, s, ids, rate: honest(self, p, s, ids, 2 * rate)
    )


def add_noise_before_the_clip(patch):
    """The sum is noised and then scaled to the clip norm: the noise is scaled away with it."""
    honest_sum, honest_noise = gradients._clipped_sum, RunKey.normals
    key = RunKey.insecure(99)
    steps = iter(range(10**6))

    def noised_then_clipped(model, losses, rows, params, clip_norm, *rest):
        total = honest_sum(model, losses, rows, params, 1e9, *rest)
        total += (honest_noise(key, "wrong", next(steps), total.numel()) * NOISE * CLIP).float()
        return total * (clip_norm * len(rows) ** 0.5 / total.norm())

    patch.setattr(gradients, "_clipped_sum", noised_then_clipped)
    patch.setattr(RunKey, "normals", lambda self, p, s, n: torch.zeros(n, dtype=torch.float64))


@pytest.mark.parametrize(
    "mutate",
    [halve_the_noise, switch_clipping_off, double_the_sampling_rate, add_noise_before_the_clip],
)
def test_the_audit_catches(mutate, monkeypatch):
    mutate(monkeypatch)
    scores_in, scores_out = train_on_canaries(RunKey.insecure(1))
    audit = profile_audit(scores_in, scores_out, [QUERY.event])
    assert audit.violated
    assert "VIOLATION" in str(audit)
