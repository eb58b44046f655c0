"""Checkpoints: whole or not there, and a damaged one costs an interval, not a run."""

import resource
import stat

import pytest
import torch
from torch import nn

from dpray.checkpoints import Checkpoint, Checkpoints, pack, unpack
from dpray.errors import CannotResume, StorageFailed


def checkpoint(step: int, size: int = 4) -> Checkpoint:
    return Checkpoint(step, {"w": torch.full((size,), float(step))}, "head", {"note": step})


def test_the_newest_comes_back_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    for step in (1, 2, 3):
        checkpoints.save("train", checkpoint(step))
    assert len(list((tmp_path / "c").iterdir())) == 2
    latest = checkpoints.latest("train", ledger_heads=["head"])
    assert (latest.step, latest.extra) == (3, {"note": 3})
    assert torch.equal(latest.tensors["w"], torch.full((4,), 3.0))
    assert checkpoints.latest("another stage", ledger_heads=["head"]) is None


def test_only_the_owner_may_look_at_them(tmp_path):
    Checkpoints(tmp_path / "c").save("train", checkpoint(1))
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in (tmp_path / "c").iterdir())


def test_a_damaged_one_is_passed_by_and_said_in_one_line(tmp_path):
    said = []
    checkpoints = Checkpoints(tmp_path, say=said.append)
    for step in (1, 2):
        checkpoints.save("train", checkpoint(step))
    newest = sorted(tmp_path.iterdir())[-1]
    for damaged in (newest.read_bytes()[:-1], b"", newest.read_bytes()[:-4] + b"abcd"):
        newest.write_bytes(damaged)
        assert checkpoints.latest("train", ledger_heads=["head"]).step == 1
    assert len(said) == 3
    assert newest.name in said[0]


def test_one_of_another_ledger_is_refused(tmp_path):
    Checkpoints(tmp_path).save("train", checkpoint(1))
    with pytest.raises(CannotResume, match="another ledger"):
        Checkpoints(tmp_path).latest("train", ledger_heads=["foreign"])


def test_a_full_disk_is_a_clear_error_and_leaves_the_previous_one(tmp_path):
    """The system itself refuses the bytes: the limit on the size of a file is really set."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save("train", checkpoint(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(StorageFailed, match="what was there before is intact"):
            checkpoints.save("train", checkpoint(2, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["train-000000001.safetensors"]
    assert checkpoints.latest("train", ledger_heads=["head"]).step == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimiser_goes_on_as_if_nothing_had_happened(kind):
    def trained(steps: int, start=None):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        words = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.1, **words)
        if start is not None:
            unpack(start, {"model": model}, optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        return pack({"model": model}, optimizer)

    whole, halves = trained(6), trained(3, trained(3))
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_each_of_several_optimisers_gets_back_its_own_state():
    def pair():
        models = [nn.Linear(3, 2), nn.Linear(3, 2)]
        return models, [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]

    models, optimizers = pair()
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        for _ in range(number + 1):  # one step of the first, two of the second
            model(torch.full((1, 3), number + 1.0)).sum().backward()
            optimizer.step()
    others, fresh = pair()
    kept = pack({"a": models[0], "b": models[1]}, *optimizers)
    unpack(kept, {"a": others[0], "b": others[1]}, *fresh)
    for old, new in zip(optimizers, fresh, strict=True):
        states = old.state_dict()["state"], new.state_dict()["state"]
        assert states[0][0].keys() == states[1][0].keys()
        assert all(torch.equal(states[0][0][name], value) for name, value in states[1][0].items())
    assert [float(o.state_dict()["state"][0]["step"]) for o in fresh] == [1.0, 2.0]
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(models, others, strict=True))
