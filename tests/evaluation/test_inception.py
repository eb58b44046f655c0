"""Finding the Inception weights, and the network, with a file of random weights in their place."""

import hashlib
import socket

import pytest
import torch

from dpray.data.folders import data_cache
from dpray.errors import BadInput
from dpray.evaluation import inception
from dpray.evaluation.inception import Inception, find_weights
from dpray.torchvision_shim import import_torchvision


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def closed_port(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: a connection is refused
        port = taken.getsockname()[1]
        monkeypatch.setattr(inception, "WEIGHTS_URL", f"http://127.0.0.1:{port}/weights.pth")
        yield


def accept(path, monkeypatch):
    """Makes `path` the file that is looked for."""
    start = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    monkeypatch.setattr(inception, "WEIGHTS_SHA256_START", start)


def quiet(line):
    pass


def test_the_constants_are_those_of_pytorch_fid():
    import_torchvision()
    from pytorch_fid.inception import FID_WEIGHTS_URL

    assert inception.WEIGHTS_URL == FID_WEIGHTS_URL
    assert f"-{inception.WEIGHTS_SHA256_START}.pth" in inception.WEIGHTS_NAME


def test_a_given_file_with_another_checksum_is_refused_in_one_line(tmp_path):
    (tmp_path / "mine.pth").write_bytes(b"something else")
    with pytest.raises(BadInput, match=r"starts with .* instead of 6726825d") as refusal:
        find_weights(tmp_path / "mine.pth", quiet)
    assert "\n" not in str(refusal.value)


def test_a_given_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        find_weights(tmp_path / "mine.pth", quiet)


def test_a_good_file_is_taken_from_the_cache(closed_port, monkeypatch):
    kept = data_cache() / "inception" / inception.WEIGHTS_NAME
    kept.parent.mkdir()
    kept.write_bytes(b"weights")
    accept(kept, monkeypatch)
    assert find_weights(None, quiet) == kept


@pytest.mark.usefixtures("closed_port")
def test_without_network_or_a_good_cached_file_there_are_no_weights():
    kept = data_cache() / "inception" / inception.WEIGHTS_NAME
    kept.parent.mkdir()
    kept.write_bytes(b"torn")
    lines = []
    assert find_weights(None, lines.append) is None
    assert "refused" in lines[-1]


def test_a_download_is_checked_before_it_reaches_the_cache(tmp_path, monkeypatch):
    (tmp_path / "served").write_bytes(b"weights")
    monkeypatch.setattr(inception, "WEIGHTS_URL", (tmp_path / "served").as_uri())
    assert find_weights(None, quiet) is None
    assert list((data_cache() / "inception").iterdir()) == []
    accept(tmp_path / "served", monkeypatch)
    found = find_weights(None, quiet)
    assert found is not None and found.read_bytes() == b"weights"


def save_random_weights(path, monkeypatch):
    """Weights of the right form: pytorch-fid's network as it is before it loads its own."""
    import_torchvision()
    from pytorch_fid import inception as theirs
    from torchvision.models import Inception3

    built = []
    with monkeypatch.context() as patched:
        patched.setattr(theirs, "load_state_dict_from_url", lambda url, progress: {})
        patched.setattr(Inception3, "load_state_dict", lambda self, state: built.append(self))
        torch.manual_seed(0)
        theirs.fid_inception_v3()
    state = built[0].state_dict()
    # torch's own initial weights let the signal die out over so many layers.
    kernels = {name: value * 6**0.5 for name, value in state.items() if value.dim() == 4}
    torch.save({**state, **kernels}, path)


def test_features_are_those_of_pytorch_fid_and_probabilities_sum_to_one(tmp_path, monkeypatch):
    path = tmp_path / "random.pth"
    save_random_weights(path, monkeypatch)
    accept(path, monkeypatch)
    network = Inception(find_weights(path, quiet), torch.device("cpu"))
    grey = torch.rand(2, 1, 28, 28)
    features = network.features(grey)
    probabilities = network.probabilities(features)
    assert features.shape == (2, 2048) and probabilities.shape == (2, 1008)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2))

    from pytorch_fid import inception as theirs

    state = torch.load(path, weights_only=True)
    monkeypatch.setattr(theirs, "load_state_dict_from_url", lambda url, progress: state)
    with torch.no_grad():
        expected = theirs.InceptionV3().eval()(grey.expand(-1, 3, -1, -1))[0].flatten(1)
    assert expected.std() > 0.01  # else the comparison says nothing
    torch.testing.assert_close(features, expected)
