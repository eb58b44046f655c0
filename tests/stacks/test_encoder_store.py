"""The store of encoders: what was written whole is read back, anything else is as if not there."""

import pytest
import torch
from safetensors import safe_open

from dpray.errors import BadInput
from dpray.stacks.store import EncoderStore


def block(*numbers):
    """Encoders that can be told apart: that of subset k is full of k."""
    values = torch.tensor([float(number) for number in numbers])
    return {"inner.weight": values[:, None, None].expand(-1, 3, 2).clone(), "bias": values[:, None]}


@pytest.fixture
def store(tmp_path):
    store = EncoderStore(tmp_path / "encoders")
    store.write([7, 3, 5], block(7, 3, 5))
    store.write([0, 9], block(0, 9))
    return store


def shards(store):
    return sorted(store.folder.glob("*.safetensors"))


def test_encoders_are_read_in_the_order_asked_whatever_file_they_are_in(store):
    for reader in (store, EncoderStore(store.folder)):
        assert reader.present() == {7, 3, 5, 0, 9}
        encoders = reader.read([9, 3, 0, 3])
        assert encoders["bias"].flatten().tolist() == [9, 3, 0, 3]
        assert torch.equal(encoders["inner.weight"], block(9, 3, 0, 3)["inner.weight"])


def test_a_read_copies_so_that_the_file_stays_what_it_is(store):
    first = store.read([7, 9])
    first["bias"] += 100
    assert store.read([7, 9])["bias"].flatten().tolist() == [7, 9]


def test_a_damaged_file_is_dropped_with_a_word_that_names_no_subset(store):
    path = next(p for p in shards(store) if safe_open(p, "pt").metadata()["numbers"] == "[0, 9]")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = []
    reader = EncoderStore(store.folder, say=said.append)
    assert reader.present() == {7, 3, 5}
    assert len(said) == 1 and "damaged" in said[0] and path.stem not in said[0]
    assert not path.exists()


def test_messages_call_what_is_stored_by_its_name(store):
    path = shards(store)[0]
    path.write_bytes(path.read_bytes()[:-10])
    said = []
    teachers = EncoderStore(store.folder, say=said.append, holds="teachers")
    with pytest.raises(BadInput, match="teachers that were asked for"):
        teachers.read([1000])
    assert "files of teachers are damaged" in said[0] and "encoders" not in said[0]


def test_a_file_that_was_cut_short_is_dropped(store):
    path = shards(store)[0]
    path.write_bytes(path.read_bytes()[:-10])
    said = []
    assert len(EncoderStore(store.folder, say=said.append).present()) in (2, 3)
    assert len(said) == 1


def test_a_half_written_file_is_not_looked_at_and_goes_with_the_store(store):
    partial = store.folder / f".{'0' * 64}.safetensors.123.partial"
    partial.write_bytes(b"half")
    assert EncoderStore(store.folder).present() == {7, 3, 5, 0, 9}
    store.remove()
    assert not store.folder.exists()
    assert store.present() == set()


def test_encoders_of_other_settings_are_not_taken_for_these(tmp_path):
    EncoderStore(tmp_path, made_by="lr 1").write([1], block(1))
    said = []
    other = EncoderStore(tmp_path, made_by="lr 2", say=said.append)
    assert other.present() == set()
    assert len(said) == 1


def test_a_reader_finds_what_another_process_wrote_since(store):
    reader = EncoderStore(store.folder)
    assert 4 not in reader.present()
    store.write([4], block(4))
    assert reader.read([4, 7])["bias"].flatten().tolist() == [4, 7]


def test_only_the_owner_may_look(store):
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in shards(store))


def test_files_are_plain_safetensors(store):
    with safe_open(shards(store)[0], framework="pt") as file:
        assert set(file.keys()) == {"inner.weight", "bias"}


def test_what_is_not_there_or_does_not_fit_is_refused(store):
    with pytest.raises(BadInput, match="asked for are not there"):
        store.read([7, 8])
    with pytest.raises(BadInput, match="at least one"):
        store.read([])
    with pytest.raises(BadInput, match="rows"):
        store.write([1, 2], block(1))


def test_more_files_than_may_be_mapped_at_once_are_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("dpray.stacks.store._MAPPED_AT_ONCE", 2)
    store = EncoderStore(tmp_path)
    for number in range(5):
        store.write([number], block(number))
    assert store.read([4, 0, 2, 3, 1])["bias"].flatten().tolist() == [4, 0, 2, 3, 1]
    assert len(store._mapped) == 2
