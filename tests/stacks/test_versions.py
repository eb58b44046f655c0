"""Encoders over time: the newest counts, a replay forgets, and nothing needed is cleared away."""

import pytest
import torch

from dpray.errors import CannotResume
from dpray.stacks.versions import EncoderVersions


@pytest.fixture
def versions(tmp_path):
    made = EncoderVersions(tmp_path / "encoders", made_by="settings", say=print)
    write(made, [0, 1, 2, 3], 0)
    return made


def write(versions, numbers, version):
    """Encoders that say who they are and when they were made."""
    values = torch.tensor([[100.0 * version + number] for number in numbers])
    versions.write(torch.tensor(numbers), {"weight": values}, version)


def read(versions, *numbers):
    return versions.read(torch.tensor(numbers))["weight"].flatten().tolist()


def test_the_newest_version_of_every_encoder_counts(versions):
    write(versions, [1, 3], 5)
    write(versions, [3], 8)
    assert read(versions, 3, 0, 1) == [803.0, 0.0, 501.0]


def test_a_new_process_finds_all_of_them_again(versions, tmp_path):
    write(versions, [1], 5)
    again = EncoderVersions(tmp_path / "encoders", made_by="settings", say=print)
    assert read(again, 0, 1) == [0.0, 501.0]


def test_a_replay_forgets_what_came_after_its_checkpoint(versions):
    write(versions, [1], 5)
    write(versions, [1, 2], 8)
    versions.forget_after(5)
    assert read(versions, 1, 2) == [501.0, 2.0]


def test_what_an_older_checkpoint_needs_is_kept_and_the_rest_goes(versions, tmp_path):
    write(versions, [0, 1, 2, 3], 5)
    write(versions, [1, 2], 8)
    versions.prune(5)
    assert sorted(p.name[-1] for p in (tmp_path / "encoders").iterdir()) == ["5", "8"]
    versions.forget_after(5)
    assert read(versions, 0, 1, 2, 3) == [500.0, 501.0, 502.0, 503.0]


def test_encoders_that_are_gone_are_said_to_be_gone(versions):
    with pytest.raises(CannotResume, match="gone"):
        read(versions, 0, 9)


def test_at_the_end_nothing_is_left(versions, tmp_path):
    write(versions, [1], 5)
    versions.remove()
    assert not (tmp_path / "encoders").exists()
