"""VaeGM: classes are charged beside each other, and each autoencoder sees its own class alone."""

from dataclasses import replace

import pytest
import torch

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.methods.continual import Continual
from dpray.methods.vaegm import VaeGM
from dpray.privacy.accounting import Adjacency, Budget, cost_of
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.parts import CONDITION, of_classes

TINY = {"latent": 2, "hidden": 8, "batch_size": 10, "epochs": 2.0}


def test_ten_classes_cost_what_one_does_and_one_after_another_they_would_not(tiny_data, make_run):
    """Batches of 51 of 6,000 and 3,000 steps are sampled as 512 of 60,000: baselines.md 4."""
    mnist = replace(tiny_data, num_records=60_000, class_names=tuple("0123456789"))
    query = VaeGM(batch_size=51, epochs=25.5)._query(mnist, make_run(noise_multiplier=0.63))
    assert (query.steps, query.sample_rate) == (3000, 51 / 6000)
    ledger = Ledger(Budget(50.0, 1e-5))
    for label in range(10):
        named = replace(query, name=f"class {label}")
        ledger.pay(named, part=of_classes([label]))
    one, ten = (cost_of([query.event] * n, 1e-5, coarse=True) for n in (1, 10))
    assert ledger.cost().rdp == pytest.approx(10, rel=0.02)  # by this accountant, as there
    assert ledger.epsilon <= one.epsilon < 0.5 * ten.epsilon


def test_each_class_is_charged_for_its_own_records_and_the_card_says_on_what_terms(
    tiny_data, make_run, tmp_path
):
    run = make_run(noise_multiplier=3.0)
    run.ledger = Ledger.create(
        tmp_path / "ledger", Budget(50.0), subject={}, adjacency=Adjacency.ADD_REMOVE
    )
    VaeGM(**TINY).fit(tiny_data, run)
    entries = run.ledger.entries
    assert [entry.part for entry in entries] == [of_classes([label]) for label in range(3)]
    assert len({entry.name for entry in entries}) == 3
    words = {"run_id": "r", "method": "vaegm", "dataset": "tiny", "public": {}}
    card = make_card(ledger=run.ledger, facts=run.facts, num_records=60, **words)
    assert CONDITION in card.text()
    assert "within each of 3 classes" in card.text()


def test_a_record_moves_the_decoder_of_its_own_class_and_no_other(tiny_data, make_run):
    private = tiny_data.private
    less = replace(tiny_data, private=private[torch.arange(60) != 7])  # of class 1
    whole, without = (
        VaeGM(**{**TINY, "batch_size": 20}).fit(data, make_run(noise_multiplier=1.0)).module.by_task
        for data in (tiny_data, less)
    )
    same = [
        all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
        for one, other in zip(whole, without, strict=True)
    ]
    assert same == [True, False, True]


def test_how_many_records_a_class_has_changes_nothing_that_is_public(tiny_data, make_run):
    private = tiny_data.private
    crowded = Images(private.pixels, torch.arange(60).clamp(max=2), private.ids)
    facts = []
    for records in (private, crowded):
        run = make_run(noise_multiplier=1.0)
        release = VaeGM(**TINY).fit(replace(tiny_data, private=records), run)
        facts.append((run.facts, [entry.event for entry in run.ledger.entries], release.arguments))
    assert facts[0] == facts[1]
    assert facts[0][0]["sample_rate"] == 0.5


def test_it_learns_where_the_classes_are_bright(tiny_data, make_run):
    settings = {"latent": 2, "hidden": 16, "batch_size": 20, "epochs": 150.0}
    release = VaeGM(**settings).fit(tiny_data, make_run(noise_multiplier=0.01))
    labels = torch.arange(3).repeat(20)
    drawn = release.sample(labels, torch.Generator().manual_seed(0))
    bands = torch.stack([drawn[:, :, 5 * i : 5 * i + 5].mean((1, 2, 3)) for i in range(3)], 1)
    assert (bands.argmax(1) == labels).float().mean() > 0.9


def test_a_training_stopped_in_its_second_class_goes_on_to_the_same_decoders(
    tiny_data, make_run, monkeypatch
):
    whole = VaeGM(**TINY).fit(tiny_data, make_run(key=5, noise_multiplier=1.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, noise_multiplier=1.0, folder="stopped")
    bars = []

    def stop_in_the_second(label, total):
        bars.append(label)
        if len(bars) == 2:
            raise KeyboardInterrupt
        return honest(label, total)

    honest, run.progress = run.progress, stop_in_the_second
    with pytest.raises(KeyboardInterrupt):
        VaeGM(**TINY).fit(tiny_data, run)
    resumed = make_run(key=5, noise_multiplier=1.0, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = VaeGM(**TINY).fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == 3
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden": 0}, "hidden 0 must be at least 1"),
        ({"lr": 0.0}, "lr 0 must be above 0"),
        ({"grain": 40}, "a grain of 40 does not fit"),
        ({"averaging": 1.0}, "below 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        VaeGM(**settings).check(tiny_data)


def test_it_cannot_learn_tasks_which_are_parts_already(tiny_data):
    four = replace(tiny_data, class_names=("a", "b", "c", "d"))
    with pytest.raises(BadInput, match="choose dp-vae"):
        Continual(learner="vaegm", classes_per_task=2).check(four)
