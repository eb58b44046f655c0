"""`reproduce_tables.py dpmi`: its rows, what is kept of runs that fail, public models, pictures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from dpray.contract import Synthesizer
from dpray.data.datasets import load
from dpray.data.folders import data_cache
from dpray.methods.dpmi import Dpmi
from dpray.models import build
from dpray.privacy.accounting import Adjacency, Budget, cost_of
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.queries import PoissonGradients
from dpray.runs import make_folder

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from reproduce_tables import main  # noqa: E402
from tables import dpmi, dpmi_figures, find, inversions  # noqa: E402
from tables.dpmi_costs import about_num_records, epsilon_after, epsilon_of_latents  # noqa: E402
from tables.jobs import How, RunJob, Workers  # noqa: E402
from tables.kept import Place  # noqa: E402
from tables.rows import Row, chosen  # noqa: E402
from tables.summary import Measured, markdown, measure  # noqa: E402

TABLE = find("dpmi")
QUIET = How(track=False, quiet=True)
TINY = {
    "combo": "ae-enc-vae",
    "classes": "conditional",
    "public_steps": 20,
    "public_latent": 8,
    "noise": 4,
    "hidden": 8,
    "steps": 2,
}
QUERY = PoissonGradients(
    name="dpmi", sample_rate=0.1, steps=8, clip_norm=1, noise_multiplier=1.5, expected_batch_size=9
)
ROW = Row(
    label="ae-enc-vae, tiny",
    series="tiny",
    method="dpmi",
    dataset="digits",
    epsilon=10.0,
    settings=TINY,
)
LOST = replace(ROW, label="lost", settings={**TINY, "lr": 3e37, "steps": 6})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


def row_of(label: str, dataset: str = "mnist") -> Row:
    return next(row for row in TABLE.rows(dataset) if row.label == label)


def kept(row: Row, folder: Path, seed: int = 0, **others: Any) -> Place:
    """What a finished run leaves among the results, with figures that were made up."""
    place = Place(row, seed, folder)
    folder.mkdir(exist_ok=True)
    metrics = {"test_accuracy": 0.8, "domain_is": 3.0, "core_seconds": 60.0}
    value = {
        "label": row.label,
        "run_id": "made-up",
        "settings": {},
        "epsilon": row.epsilon,
        "noise_multiplier": 1.5,
        "metrics": metrics | others.pop("metrics", {}),
        "resumed": False,
        **others,
    }
    place.finished.write_text(json.dumps(value))
    return place


def all_measured(folder: Path) -> list[Measured]:
    return [measure(row, (0,), folder) for row in TABLE.rows("digits")]


def test_six_combinations_stand_at_three_budgets_and_collapsed_gans_beside_three_of_them() -> None:
    rows = chosen(TABLE.rows("mnist"), "budget", None)
    assert {row.settings["combo"] for row in rows} == set(dpmi.COMBOS)
    assert len(rows) == 18 and all(row.settings["classes"] == "conditional" for row in rows)
    published = {row.label: str(row.published) for row in rows if row.published}
    assert published == {
        "wgan-gan, epsilon 10": "FID 211.5, IS 1.0, collapsed",
        "ae-enc-gan, epsilon 10": "FID 314.1, IS 1.0, collapsed",
        "ae-grad-gan, epsilon 10": "FID 339.7, IS 1.0, collapsed",
    }


def test_sweeps_take_the_rows_at_budgets_for_the_defaults_and_run_nothing_twice() -> None:
    rows = TABLE.rows("mnist")
    activations = chosen(rows, "activation", None)
    assert [row.settings.get("activation") for row in activations] == [None] * 3 + ["tanh"] * 3
    norms = {row.settings.get("clip_norm", Dpmi.clip_norm) for row in chosen(rows, "clip", None)}
    assert norms == {0.01, 0.05, 0.1, 0.25, 0.5}
    dpmi_rows = [row for row in rows if row.method == "dpmi"]
    specs = [json.dumps(row.spec(0).to_json(), sort_keys=True) for row in dpmi_rows]
    assert len(set(specs)) == len(specs)


def test_noise_levels_of_the_source_stand_with_its_claim_and_what_they_cost() -> None:
    row = row_of("ae-grad-vae, noise 0.6, 24,000 steps")
    assert row.settings["activation"] == "tanh" and row.settings["clip_norm"] == 0.1
    assert str(row.published) == "FID 147.5, IS 1.70, epsilon 12.7"
    assert about_num_records(row) == 20_000
    assert epsilon_of_latents(row) == pytest.approx(10.4, rel=0.03)
    many = row_of("ae-grad-vae, noise 0.3, 48,000 steps")
    assert (epsilon_of_latents(many) or 0) > 250


def test_public_data_are_part_of_a_specification_only_where_a_row_names_them() -> None:
    style = row_of("ae-grad-vae, public fashion-mnist, epsilon 10")
    assert style.dataset == "mnist:0,2,4,6,8@rest"
    assert style.spec(0).to_json()["public"] == "fashion-mnist"
    assert "public" not in row_of("ae-grad-vae, epsilon 10").spec(0).to_json()
    assert Place(style, 0, Path()).stem != Place(replace(style, public="cifar10"), 0, Path()).stem


@pytest.mark.parametrize(
    ("run", "word"),
    [
        ({"metrics": {"domain_is": 3.0}}, "varied"),
        ({"metrics": {"domain_is": 1.2}}, "collapsed"),
        ({"metrics": {}, "not_numbers": ["domain_is"]}, "does not converge"),
        ({"metrics": {}, "diverged": "weights"}, "does not converge"),
        ({"metrics": {}}, "-"),
    ],
)
def test_every_run_has_an_outcome(run: dict[str, Any], word: str) -> None:
    assert dpmi.outcome(run) == word


def test_rows_whose_runs_differ_say_how_many_did_what(tmp_path: Path) -> None:
    row = row_of("ae-grad-gan, epsilon 3", "digits")
    for seed, score in enumerate((3.0, 1.1, 2.0)):
        kept(row, tmp_path, seed, metrics={"domain_is": score})
    text = markdown(TABLE, "digits", [measure(row, (0, 1, 2), tmp_path)])
    assert "| 2.03 ± 0.95 | 2 varied, 1 collapsed | 1.0 | 3 |" in text
    assert "| FID |" not in text


def test_scores_of_inception_have_columns_only_where_they_were_measured(tmp_path: Path) -> None:
    row = row_of("ae-grad-vae, epsilon 10", "digits")
    kept(row, tmp_path, metrics={"fid": 120.0, "inception_score": 2.0})
    text = markdown(TABLE, "digits", [measure(row, (0,), tmp_path)])
    assert "| domain IS (of 5) | FID | IS | outcome |" in text
    assert "| 3.00 | 120.0 | 2.00 | varied |" in text


def test_weights_that_are_not_numbers_end_no_table(tmp_path: Path) -> None:
    settings = {"model": "linear", "epochs": 1, "lr": 1e37}
    row = replace(ROW, method="sgd", epsilon=None, settings=settings)
    assert Workers().carry_out([RunJob(Place(row, 0, tmp_path))], QUIET) == 0
    measured = measure(row, (0,), tmp_path)
    assert measured.runs[0]["diverged"].startswith("training diverged")
    assert "| infinite | - | diverged |" in markdown(find("seed0"), "digits", [measured])


def test_a_run_that_diverges_becomes_a_row_that_says_so_and_what_it_spent(tmp_path: Path) -> None:
    place = Place(LOST, 0, tmp_path)
    assert Workers().carry_out([RunJob(place)], QUIET) == 0
    value = place.read()
    assert value is not None and "not numbers" in value["diverged"]
    assert 9 < value["epsilon"] <= 10 and value["steps"] == 6
    assert not place.started.exists() and not place.images.exists()
    measured = measure(LOST, (0,), tmp_path)
    assert "| diverged | - | - | - | - | does not converge |" in markdown(
        TABLE, "digits", [measured]
    )
    assert not dpmi_figures.curves(TABLE, "digits", [measured], tmp_path, tmp_path / "none.png")


def test_public_models_are_trained_once_before_rows_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(ROW, label="another", epsilon=1.0)
    gan = replace(ROW, label="a gan", settings={**TINY, "combo": "wgan-vae", "public_steps": 1})
    rows = [ROW, LOST, other, gan, replace(ROW, method="sgd", epsilon=None, settings={})]
    inversions.ready_public_models(rows, Workers(), QUIET)
    files = set((data_cache() / "public-models").iterdir())
    assert len(files) == 2
    assert capsys.readouterr().err.count("training public models") == 1
    assert Workers().carry_out([RunJob(Place(LOST, 0, tmp_path))], QUIET) == 0
    assert set((data_cache() / "public-models").iterdir()) == files
    run = Place(LOST, 0, tmp_path).read()
    assert run is not None and run["spec"]["public"] == "digits:1,3,5,7,9@rest"


def test_reconstructions_are_of_public_images_that_no_model_saw(tmp_path: Path) -> None:
    shown = inversions.held_out_images(ROW, print)
    test = load("digits:1,3,5,7,9").test
    assert all(bool((test.pixels == image).flatten(1).all(1).any()) for image in shown[:20])
    trained_on = inversions.public_data(ROW).images.pixels
    assert not any(bool((trained_on == image).flatten(1).all(1).any()) for image in shown[:20])
    one = inversions.Inversion(ROW, tmp_path)
    assert one.read() is None
    one.do(QUIET, print)
    found = one.read()
    assert found is not None and found["pixels"].shape == (1, *found["images"].shape)
    true = (found["pixels"][0] - found["images"]).square().mean()
    assert float(found["errors"][0]) == pytest.approx(float(true), rel=1e-4)


def test_only_ways_with_the_settings_of_the_method_are_shown(tmp_path: Path) -> None:
    rows = TABLE.rows("digits")
    assert [one.way for one in inversions.ways_of(rows, tmp_path)] == ["ae-grad", "ae-enc", "wgan"]
    assert inversions.ways_of([ROW], tmp_path) == []
    assert inversions.ways_of(chosen(rows, "public", None), tmp_path) == []


def picture(name: str, folder: Path) -> Path | None:
    path = folder / f"{name}.png"
    figure = TABLE.figures[name]
    return path if figure.draw(TABLE, "digits", all_measured(folder), folder, path) else None


def test_pictures_of_sweeps_need_something_to_compare(tmp_path: Path) -> None:
    rows = TABLE.rows("digits")
    for row in chosen(rows, "budget", "ae-grad-vae"):
        kept(row, tmp_path)
    assert picture("activation", tmp_path) is None and picture("clip", tmp_path) is None
    for number, row in enumerate(chosen(rows, "all", "tanh|clip norm")):
        kept(row, tmp_path, metrics={"test_accuracy": 0.5 + number / 50})
    for name in ("activation", "clip"):
        path = picture(name, tmp_path)
        assert path is not None
        with Image.open(path) as image:
            assert image.width > 1000


def test_the_grid_shows_the_six_combinations_at_epsilon_10(tmp_path: Path) -> None:
    assert picture("grids", tmp_path) is None
    for row in chosen(TABLE.rows("digits"), "all", "epsilon 10$|epsilon 3$"):
        Image.new("L", (300, 292)).save(kept(row, tmp_path).images)
    path = picture("grids", tmp_path)
    assert path is not None
    with Image.open(path) as image:
        assert image.width > image.height * 1.1  # two rows of three, and of no other


def test_reconstructions_are_drawn_from_what_is_kept(tmp_path: Path) -> None:
    assert picture("reconstructions", tmp_path) is None
    for one in inversions.ways_of(TABLE.rows("digits"), tmp_path):
        images = torch.rand(12, 1, 28, 28)
        steps = torch.tensor(one.steps)
        pixels = images.expand(len(steps), *images.shape).clone()
        value = {"images": images, "steps": steps, "errors": steps / 1000, "pixels": pixels}
        one.finished.write_bytes(save(value))
    assert picture("reconstructions", tmp_path) is not None


def released_with_snapshots(run_id: str, row: Row) -> Ledger:
    """The folder of a run whose learner was never trained; its queries are on the ledger."""
    folder = make_folder(run_id, row.spec(0))
    arguments = {
        "public": {"model": "fc-autoencoder", "arguments": {"shape": [1, 28, 28], "latent": 8}},
        "decoder": {"size": 8, "num_classes": 5, "noise": 4, "hidden": 8},
        "num_snapshots": 2,
    }
    module = build("latent-synthesizer", **arguments)
    module.histories[0].steps.copy_(torch.tensor([4, 8]))
    names = tuple("02468")
    Synthesizer("latent-synthesizer", arguments, module, names, (1, 28, 28)).save(folder.release)
    ledger = Ledger.create(folder.ledger, Budget(10.0), subject={}, adjacency=Adjacency.ADD_REMOVE)
    ledger.pay(QUERY)
    make_card(
        run_id=run_id,
        method="dpmi",
        dataset="digits",
        ledger=ledger,
        facts=QUERY.facts(),
        public={},
        num_records=480,
    ).write(folder.path)
    return ledger


def test_snapshots_are_drawn_with_what_was_spent_by_then(tmp_path: Path) -> None:
    row = replace(ROW, group="training")
    ledger = released_with_snapshots("a-run", row)
    one = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5))
    four = cost_of([dp.SelfComposedDpEvent(one, 4)], 1e-5).epsilon
    assert epsilon_after(4, ledger) == pytest.approx(four)
    (first, images), (last, _) = dpmi_figures._snapshots("a-run", 0)
    assert first == f"step 4, epsilon {four:.3g}" and images.shape == (10, 1, 28, 28)
    assert last == f"step 8, epsilon {ledger.epsilon:.3g}" and ledger.epsilon > 1.1 * four
    kept(row, tmp_path, run_id="a-run")
    path, measured = tmp_path / "training.png", [measure(row, (0,), tmp_path)]
    assert dpmi_figures.training(TABLE, "digits", measured, tmp_path, path) and path.exists()


def test_the_command_prints_kept_rows_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(row_of("ae-grad-vae, epsilon 10", "digits"), tmp_path / "dpmi")
    words = ["dpmi", "--dataset", "digits", "--out", str(tmp_path)]
    assert main([*words, "--print", "--seeds", "1"]) == 0
    text = (tmp_path / "dpmi-digits.md").read_text()
    assert "| ae-grad-vae, epsilon 10 | - | 10 | 1.5 | 80.00 |" in text
    assert "![Accuracy against epsilon](dpmi-digits-curves.png)" in text
    assert main([*words, "--group", "clip", "--list"]) == 0
    assert "clip norm 0.01, epsilon 1" in capsys.readouterr().out
