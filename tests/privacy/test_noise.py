import os
import stat

import numpy as np
import pytest
import torch
from scipy import stats

from dpray.errors import CannotResume
from dpray.privacy.noise import RunKey

KEY = RunKey.insecure(7)
IDS = torch.arange(20_000)


def test_normals_have_the_promised_scale_and_not_another():
    draws = KEY.normals("x/noise", 0, 200_000).numpy()
    assert abs(draws.std() - 1) < 5 / np.sqrt(2 * 200_000)
    assert stats.kstest(draws, stats.norm().cdf).pvalue > 1e-4
    for wrong in (0.97, 1.03):
        assert stats.kstest(draws, stats.norm(scale=wrong).cdf).pvalue < 1e-6


def test_a_replayed_step_is_the_same_step_and_another_step_is_independent():
    first, again = KEY.normals("x/noise", 3, 5000), KEY.normals("x/noise", 3, 5000)
    assert torch.equal(first, again)
    for other in (KEY.normals("x/noise", 4, 5000), KEY.normals("y/noise", 3, 5000)):
        correlation = torch.corrcoef(torch.stack([first, other]))[0, 1]
        assert abs(correlation) < 5 / np.sqrt(5000)


def test_every_record_is_picked_at_the_rate_and_on_its_own():
    counts = torch.zeros(len(IDS))
    for step in range(100):
        counts[KEY.poisson_rows("x/batch", step, IDS, 0.05)] += 1
    expected = stats.binom(100, 0.05)
    assert abs(counts.mean() - 5) < 5 * np.sqrt(100 * 0.05 * 0.95 / len(IDS))
    assert abs(counts.var() / expected.var() - 1) < 0.06


def test_removing_a_record_or_splitting_the_work_changes_no_other_records_fate():
    rows = KEY.poisson_rows("x/batch", 5, IDS, 0.1)
    picked = set(IDS[rows].tolist())
    keep = IDS != 123
    without = IDS[keep][KEY.poisson_rows("x/batch", 5, IDS[keep], 0.1)]
    assert set(without.tolist()) == picked - {123}
    shards = [IDS[rank == IDS % 3] for rank in range(3)]
    joined = [s[KEY.poisson_rows("x/batch", 5, s, 0.1)] for s in shards]
    assert set(torch.cat(joined).tolist()) == picked


def test_a_rate_of_one_takes_everybody():
    assert len(KEY.poisson_rows("x/batch", 0, IDS, 1.0)) == len(IDS)


def test_the_key_file_is_for_its_owner_only_and_is_destroyed(tmp_path):
    path = tmp_path / "key"
    key = RunKey.fresh()
    old = os.umask(0)
    try:
        key.write(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = RunKey.read(path)
    assert torch.equal(again.normals("x", 0, 10), key.normals("x", 0, 10))
    RunKey.destroy(path)
    with pytest.raises(CannotResume, match="destroyed"):
        RunKey.read(path)


def test_a_key_never_shows_itself():
    key = RunKey.fresh()
    assert key._secret.hex() not in repr(key)
    assert "_secret" not in repr(key)


def test_two_fresh_keys_differ():
    a, b = RunKey.fresh(), RunKey.fresh()
    assert not torch.equal(a.normals("x", 0, 10), b.normals("x", 0, 10))
    assert a.commitment("data") != b.commitment("data")


def test_draws_of_a_record_do_not_depend_on_who_else_is_there():
    key, ids = RunKey.insecure(1), torch.arange(500)
    whole = key.record_normals("latents", 3, ids, 5)
    part = key.record_normals("latents", 3, ids[100:200], 5)
    assert torch.equal(whole[100:200], part)
    assert not torch.equal(whole, key.record_normals("latents", 4, ids, 5))
    assert not torch.equal(whole, key.record_normals("other", 3, ids, 5))
    assert not torch.equal(whole, RunKey.insecure(2).record_normals("latents", 3, ids, 5))


def test_draws_of_records_are_standard_normals():
    drawn = RunKey.insecure(1).record_normals("latents", 0, torch.arange(20_000), 7)
    assert drawn.shape == (20_000, 7)
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(1.02 * drawn.flatten().numpy(), "norm").pvalue < 1e-3
    correlations = torch.corrcoef(drawn.T) - torch.eye(7)
    assert correlations.abs().max() < 5 / 20_000**0.5
