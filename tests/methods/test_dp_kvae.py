"""DP-kVAE: noisy k-means and gradients share one budget, and a cluster is a record's own affair."""

import math
from dataclasses import replace

import pytest
import torch

from dpray.clustering import Clustering, clustering_queries
from dpray.embeddings import SENSITIVITY, noisy_embedding_sums, random_embedding
from dpray.errors import BadInput
from dpray.methods.dp_kvae import DPKVae
from dpray.privacy.accounting import Budget, cost_of
from dpray.search.budgets import DataFacts, training_event

TINY = {
    "clusters": 2,
    "iterations": 2,
    "frequencies": 20,
    "latent": 2,
    "hidden": 8,
    "batch_size": 20,
    "epochs": 2.0,
}


def clustering(data, run, frequencies=50):
    embed = random_embedding(data.shape, frequencies, 0.135, run)
    return Clustering(data.private.pixels, embed, data.num_records, run)


def found_clusters(data, run, count, noise):
    paid = [run.ledger.pay(query) for query in clustering_queries(4, noise)]
    own = clustering(data, run)
    with run.progress("", None) as bar:
        return own, own.centres(count, paid, bar)


def test_the_sums_of_the_clustering_cost_what_one_gaussian_does():
    """One release at 3.7306 costs epsilon 1, and so do n at the root of n times that."""
    method = DPKVae(iterations=4, clustering_noise=1.0)
    *sums, gradients = method.queries(3.730632 * math.sqrt(6), 60_000)
    assert [query.name for query in sums][::5] == ["feature mean", "cell counts"]
    assert cost_of([query.event for query in sums], 1e-5).epsilon == pytest.approx(1, abs=1e-3)
    more = cost_of([query.event for query in (*sums, gradients)], 1e-5, coarse=True)
    assert more.epsilon > 1.01


def test_a_record_moves_a_sum_by_its_features_and_its_count_and_no_more(tiny_data, make_run):
    run = make_run(noise_multiplier=1.0)
    own = clustering(tiny_data, run)
    queries = iter(clustering_queries(5, 1e-9))

    def sums(rows):
        slots, paid = tiny_data.private.labels[rows], run.ledger.pay(next(queries))
        return noisy_embedding_sums(own.pixels[rows], slots, 3, own.embed, run, paid)

    whole = sums(torch.arange(60))
    for gone in (0, 7, 31):
        moved = (whole - sums((torch.arange(60) != gone).nonzero().flatten())).norm()
        assert moved == pytest.approx(SENSITIVITY, abs=1e-5)
        assert moved > 1.01  # the count rides along: features alone would be too low a bound


@pytest.mark.parametrize(("claimed", "holds"), [(3.0, True), (1.5, False)])
def test_the_noise_of_a_sum_is_the_multiplier_times_the_sensitivity(
    claimed, holds, tiny_data, make_run
):
    run = make_run(noise_multiplier=1.0)
    own, slots = clustering(tiny_data, run, frequencies=500), tiny_data.private.labels

    def sums(noise):
        query = replace(clustering_queries(1, noise)[0], name=f"at {noise}")
        return noisy_embedding_sums(own.pixels, slots, 3, own.embed, run, run.ledger.pay(query))

    noise = (sums(3.0) - sums(1e-9)).flatten()
    spread = float(noise.std()) / (claimed * SENSITIVITY)
    assert (abs(spread - 1) < 5 / math.sqrt(2 * len(noise))) == holds


def test_the_cluster_of_a_record_depends_on_it_and_the_centres_alone(tiny_data, make_run):
    run = make_run(noise_multiplier=1.0)
    own, centres = found_clusters(tiny_data, run, 3, 5.0)
    rows = torch.tensor([3, 50, 9])
    alone = replace(own, pixels=own.pixels[rows]).nearest(centres)
    assert torch.equal(alone, own.nearest(centres)[rows])


def test_with_little_noise_clusters_are_of_one_kind_of_image(tiny_data, make_run):
    own, centres = found_clusters(tiny_data, make_run(noise_multiplier=1.0), 6, 0.01)
    nearest, labels = own.nearest(centres), tiny_data.private.labels
    counts = torch.zeros(6, 3).index_put((nearest, labels), torch.ones(60), accumulate=True)
    assert counts.max(1).values.sum() >= 54  # of sixty
    assert (counts.sum(1) > 0).sum() >= 3


def test_everything_is_paid_before_the_first_sum_is_taken(tiny_data, make_run, monkeypatch):
    run = make_run(noise_multiplier=2.0)
    names, honest = [], run.once

    def watch(name, release):
        assert len(run.ledger.entries) == 5
        names.append(name)
        return honest(name, release)

    monkeypatch.setattr(run, "once", watch)
    DPKVae(**TINY).fit(tiny_data, run)
    assert names == ["feature-mean", "k-means-1", "k-means-2", "cell-counts"]
    noises = [entry.event.noise_multiplier for entry in run.ledger.entries[:-1]]
    assert noises == [10.0] * 4
    assert run.facts["noise_multiplier"] == 2.0


def test_a_search_knows_the_events_before_a_trial_starts(tiny_data, make_run):
    method = DPKVae(**{**TINY, "batch_size": 60})  # no sampling: quick to account for
    run = make_run(epsilon=1.0)
    method.fit(tiny_data, run)
    event = training_event(method, DataFacts.of(tiny_data), Budget(1.0, 1e-5))
    assert list(event.events) == [entry.event for entry in run.ledger.entries]
    assert 0.99 < run.ledger.epsilon <= 1.0


def test_the_release_holds_the_decoder_and_noisy_shares(tiny_data, make_run):
    release = DPKVae(**TINY).fit(tiny_data, make_run(noise_multiplier=2.0))
    state = release.module.state_dict()
    assert {key.split(".")[0] for key in state} == {"inner", "outer", "shares"}
    assert torch.allclose(state["shares"].sum(1), torch.ones(3))


def test_it_learns_where_the_classes_are_bright(tiny_data, make_run):
    settings = {**TINY, "hidden": 32, "batch_size": 60, "epochs": 150.0}
    release = DPKVae(**settings).fit(tiny_data, make_run(noise_multiplier=0.01))
    labels = torch.arange(3).repeat(20)
    drawn = release.sample(labels, torch.Generator().manual_seed(0))
    bands = torch.stack([drawn[:, :, 5 * i : 5 * i + 5].mean((1, 2, 3)) for i in range(3)], 1)
    assert (bands.argmax(1) == labels).float().mean() > 0.9


def test_a_stopped_run_goes_on_to_the_same_decoder(tiny_data, make_run, monkeypatch):
    whole = DPKVae(**TINY).fit(tiny_data, make_run(key=5, noise_multiplier=1.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, noise_multiplier=1.0, folder="stopped")
    honest = run.checkpoints.save

    def stop_after_four(stage, checkpoint):
        honest(stage, checkpoint)
        if stage == "train" and checkpoint.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "save", stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        DPKVae(**TINY).fit(tiny_data, run)
    resumed = make_run(key=5, noise_multiplier=1.0, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = DPKVae(**TINY).fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == 5
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clusters": 0}, "clusters 0 must be at least 1"),
        ({"iterations": 0}, "iterations 0 must be at least 1"),
        ({"clustering_noise": 0.0}, "clustering_noise 0 must be above 0"),
        ({"bandwidth": math.inf}, "bandwidth inf must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        DPKVae(**settings).check(tiny_data)
