"""Every method on two ranks, one of them without a record: the release of one rank, bit for bit.

The data have no test part, so the first rank also pays for a private hold-out while the other
one waits: it must not wait for ever. A method that needs a public test set gets the data with one,
and one that reads public data gets a class of them, or a part, that is public.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dpray import bending, methods
from dpray.evaluation import synthetic
from dpray.evaluation.suite import SUITES, Suite
from dpray.execute import execute
from dpray.spec import RunSpec

pytestmark = pytest.mark.usefixtures("own_cache")

_INVERSION = {"public_steps": 3, "public_latent": 6, "noise": 2, "batch_size": 10}
METHODS = {
    "continual": {
        "learner": "psg",
        "classes_per_task": 1,
        "learner_settings": "spc=2 width=4 iterations=1 outer=2 inner=1 pixel_steps=2 batch_size=9",
    },
    "dp-cgan": {"latent": 2, "hidden": 4, "batch_size": 20, "steps": 3, "num_fakes": 7},
    "dp-gan": {
        "latent": 2,
        "hidden": 4,
        "batch_size": 20,
        "steps": 4,
        "num_fakes": 7,
        "critic_steps": 2,
    },
    "dp-kvae": {
        "clusters": 2,
        "iterations": 2,
        "frequencies": 20,
        "latent": 2,
        "hidden": 8,
        "batch_size": 20,
        "epochs": 1.0,
    },
    "datalens": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 2,
        "questions": 3,
        "num_fakes": 6,
        "hidden": 4,
        "signs": 5,
        "fits": 2,
    },
    "dp-merf": {"frequencies": 20, "hidden": 8, "steps": 3, "images_per_class": 2},
    "dp-match": {"spc": 2, "networks": 2, "width": 2, "steps": 3, "dimensions": 4, "warp": 1.0},
    "dp-match that asks how far to bend": {
        "spc": 2,
        "networks": 2,
        "width": 2,
        "steps": 3,
        "dimensions": 4,
    },
    "dp-moments": {"dimensions": 4, "components": 2, "view": "ink"},
    "dp-sgd": {"model": "linear", "features": "pixels", "batch_size": 20, "steps": 4},
    "dp-sinkhorn": {"latent": 2, "hidden": 8, "batch_size": 20, "num_fakes": 6, "steps": 4},
    "dp-vae": {
        "class_model": "noisy-statistics",
        "latent": 2,
        "hidden": 8,
        "batch_size": 20,
        "epochs": 1.0,
    },
    "dp2-vae": {
        "encoders": 6,
        "latent": 2,
        "hidden": 4,
        "pretrain_steps": 2,
        "subsets_per_step": 3,
        "steps": 3,
    },
    "dpmi": {**_INVERSION, "ascent_steps": 2, "hidden": 4, "steps": 3, "classes": "per-class"},
    "dpmi of a gan": {
        **_INVERSION,
        "combo": "ae-enc-gan",
        "classes": "single",
        "generator_hidden": 4,
        "critic_hidden": 4,
        "num_fakes": 9,
        "steps": 4,
    },
    "g-pate": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 2,
        "questions": 3,
        "num_fakes": 6,
        "hidden": 4,
        "projections": 2,
        "fits": 2,
    },
    "pate-gan": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 2,
        "questions": 6,
        "num_fakes": 6,
        "hidden": 4,
        "student_steps": 2,
        "generator_steps": 1,
    },
    "gs-wgan": {
        "critics": 6,
        "latent": 2,
        "hidden": 4,
        "critic_hidden": 3,
        "num_fakes": 6,
        "num_images": 6,
        "warm_steps": 2,
        "subsets_per_step": 3,
        "steps": 3,
    },
    "psg": {"spc": 2, "width": 4, "iterations": 1, "outer": 2, "inner": 1, "batch_size": 20},
    "vaegm": {"latent": 2, "hidden": 8, "batch_size": 10, "epochs": 1.0},
}


ACCURACY = dict.fromkeys(METHODS, "lr_accuracy") | {
    "continual": "accuracy_after_2",
    "dp-sgd": "test_accuracy",
}

# Some data as a dataset word and a public word.
PUBLIC_WORDS = {
    "classes": lambda path: (f"{path}:0,1@rest", f"{path}:2@rest"),
    "labelling": lambda path: (f"{path}@rest", f"{path}@labelling"),
}


def run_all(dataset: str, ranks: int) -> dict[str, torch.Tensor]:
    """The weights of every method, and its metrics as one more tensor."""
    torch.set_num_threads(1)
    synthetic._FEWEST_IMAGES = 60
    bending._STEPS = 5
    for name in ("quick", "small"):
        SUITES[name] = Suite(name, ("lr",), 1, False, headline="mlp", epochs={"mlp": 2})
    found = {}
    for number, (title, settings) in enumerate(METHODS.items()):
        method = title.partition(" ")[0]
        needs_test = getattr(methods.find(method), "needs_public_test", False)
        path = str(Path(dataset).with_name("tested.npz")) if needs_test else dataset
        public = None
        if hasattr(methods.find(method), "public_data"):
            labelled = settings.get("classes") == "single"
            how = "labelling" if labelled else methods.find(method).public_data
            path, public = PUBLIC_WORDS[how](path)
        spec = RunSpec(
            method=method, dataset=path, public=public, noise_multiplier=2.0, settings=settings
        )
        result = execute(spec, run_id=f"run-{number}-{ranks}", test_key=7)
        for name, value in result.release.module.state_dict().items():
            found[f"{title}/{name}"] = value
        found[f"{title}/warp"] = torch.tensor(float(result.release.arguments.get("warp", 0)))
        found[f"{title}/accuracy"] = torch.tensor(result.metric(ACCURACY[title]))
    return found


def work(rank: int, folder: str, dataset: str) -> None:
    os.environ["DPRAY_HOME"] = f"{folder}/home"
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(run_all(dataset, 2), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
    sys.stdout.flush()


@pytest.fixture
def own_data(tmp_path, tiny_data):
    path = tmp_path / "own.npz"
    images = (tiny_data.private.pixels * 255).byte().numpy()
    labels = tiny_data.private.labels.numpy()
    np.savez(path, images=images, labels=labels)
    test = {"test_images": images[:30], "test_labels": labels[:30]}
    np.savez(path.with_name("tested.npz"), images=images[30:], labels=labels[30:], **test)
    return str(path)


def test_two_ranks_release_what_one_releases(tmp_path, own_data):
    mp.spawn(work, (str(tmp_path), own_data), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = run_all(own_data, 1)
    assert first.keys() == second.keys() == alone.keys()
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name].double(), value.double(), atol=1e-5), name
