"""`reproduce_tables.py psg`: published rows beside ours, and networks trained on releases."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import dp_accounting as dp
import pytest
import torch

from dpray.contract import Synthesizer
from dpray.data.datasets import load
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import Result
from dpray.models import build
from dpray.models.architectures import ARCHITECTURES
from dpray.privacy.accounting import Adjacency, Budget, cost_of
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.queries import PoissonGradients
from dpray.runs import make_folder, runs_folder

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from reproduce_tables import main  # noqa: E402
from tables import architectures, continual, convergence, find  # noqa: E402
from tables.costs import epsilon_after  # noqa: E402
from tables.jobs import How, Workers  # noqa: E402
from tables.kept import Place, keep  # noqa: E402
from tables.pictures import draw_curves  # noqa: E402
from tables.rows import PublishedFigure, Row  # noqa: E402
from tables.summary import markdown, measure  # noqa: E402
from tables.trained import Training  # noqa: E402

ROW = Row(
    label="a tiny set",
    series="a tiny set",
    method="psg",
    dataset="digits",
    epsilon=10.0,
    settings={"spc": 5},
    architectures={"mlp-psg": 0.5},
)
QUERY = PoissonGradients(
    name="psg", sample_rate=0.1, steps=8, clip_norm=1, noise_multiplier=1.5, expected_batch_size=9
)
QUIET = How(track=False, quiet=True)


def a_set() -> Synthesizer:
    """Public test images, the first five of each digit, and two snapshots: noise, then these."""
    test = load("digits").test
    rows = torch.cat([(test.labels == label).nonzero().flatten()[:5] for label in range(10)])
    arguments = {"shape": [1, 28, 28], "num_images": 50, "num_snapshots": 2}
    module = build("image-set", **arguments)
    noise = torch.rand(50, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    module.images.copy_(test.pixels[rows])
    module.labels.copy_(test.labels[rows])
    module.history.copy_(torch.stack([noise, test.pixels[rows]]))
    module.history_steps.copy_(torch.tensor([4, 8]))
    names = tuple("0123456789")
    return Synthesizer("image-set", arguments, module, names, (1, 28, 28))


def finished(
    folder: Path, *, run_id: str = "a-run", row: Row = ROW, seed: int = 0, **metrics: float
) -> Place:
    """What a run that released `a_set` leaves, in its own folder and among the results."""
    place, release = Place(row, seed, folder), a_set()
    own = make_folder(run_id, place.spec)
    ledger = Ledger.create(own.ledger, Budget(10.0), subject={}, adjacency=Adjacency.ADD_REMOVE)
    ledger.pay(QUERY)
    release.save(own.release)
    card = make_card(
        run_id=run_id,
        method="psg",
        dataset="digits",
        ledger=ledger,
        facts=QUERY.facts(),
        public={},
        num_records=1000,
    )
    card.write(own.path)
    found = {"test_accuracy": 0.5, **metrics}
    named = tuple(Metric(name, value, Source.PUBLIC_TEST) for name, value in found.items())
    folder.mkdir(exist_ok=True)
    keep(place, Result(run_id, place.spec, release, named, card, own), resumed=False)
    return place


def train(jobs: list[Training]) -> None:
    assert Workers().carry_out([job for job in jobs if not job.is_kept()], QUIET) == 0


@pytest.mark.parametrize(
    ("dataset", "label", "percent"),
    [
        ("mnist", "spc 20, epsilon 1", 80.9),
        ("mnist", "spc 20, epsilon 10", 95.6),
        ("mnist", "spc 20, generator prior, epsilon 10", 90.6),
        ("fashion-mnist", "spc 20, epsilon 1", 70.2),
        ("fashion-mnist", "spc 20, epsilon 10", 77.7),
        ("fashion-mnist", "spc 1, epsilon 10", 66.7),
        ("mnist", "spc 10, epsilon 1", None),
        ("digits", "spc 20, epsilon 10", None),
    ],
)
def test_published_figures_stand_beside_our_rows(
    dataset: str, label: str, percent: float | None
) -> None:
    row = next(row for row in find("psg").rows(dataset) if row.label == label)
    assert (row.published and str(row.published)) == (
        f"{percent}, epsilon {row.epsilon:g}" if percent else None
    )


def test_the_cross_architecture_table_has_the_six_networks_and_their_figures() -> None:
    rows = {row.label: row for row in find("psg").rows("mnist") if row.architectures}
    assert set(rows) == {"spc 20, epsilon 10", "spc 10, epsilon 10"}
    assert all(list(row.architectures) == list(ARCHITECTURES) for row in rows.values())
    assert rows["spc 20, epsilon 10"].architectures["resnet18"] == pytest.approx(0.941)
    for row in rows.values():
        assert row.published == PublishedFigure(
            row.architectures["convnet"] or 0, None, 10, "", True
        )


def test_a_table_has_the_columns_it_asks_for(tmp_path: Path) -> None:
    finished(tmp_path, convnet_accuracy=0.5, domain_fid=12.345)
    measured = [measure(row, (0,), tmp_path) for row in (ROW, replace(ROW, label="another"))]
    lines = markdown(find("psg"), "digits", measured).splitlines()
    assert "| ConvNet (test accuracy), % | LR | MLP | domain FID |" in lines[2]
    assert "| 50.00 | - | - | 12.3 |" in lines[4]
    assert "| not run | - | - | - |" in lines[5]
    assert "CNN |" not in markdown(find("seed0"), "digits", measured)


def test_of_a_single_run_the_deviation_of_its_networks_is_shown(tmp_path: Path) -> None:
    finished(tmp_path, convnet_accuracy=0.5, convnet_accuracy_std=0.0123)
    text = markdown(find("psg"), "digits", [measure(ROW, (0,), tmp_path)])
    assert "| 50.00 ± 1.23 | - | - | - |" in text
    assert "50.00 |" in markdown(find("seed0"), "digits", [measure(ROW, (0,), tmp_path)])


def test_networks_are_trained_once_and_shown_beside_what_was_published(tmp_path: Path) -> None:
    finished(tmp_path)
    jobs = architectures.trainings([ROW], tmp_path, networks=2, epochs=2)
    assert architectures.markdown([ROW], tmp_path) == ""
    train(jobs)
    assert len(jobs) == 2 and all(job.is_kept() for job in jobs)
    kept = json.loads(jobs[0].finished.read_text())
    assert (kept["epochs"], kept["network"], kept["run_id"]) == (2, 0, "a-run")
    lines = architectures.markdown([ROW], tmp_path).splitlines()
    assert lines[3] == "| row | MLP |"
    assert lines[5].endswith("(2 networks, 2 epochs) |")
    assert lines[6] == "| published | 50.0 |"


def test_a_row_says_for_how_long_networks_are_trained_on_it(tmp_path: Path) -> None:
    sets = [row for row in find("psg").rows("mnist") if row.architectures]
    drawn = [row for row in find("match").rows("mnist") if row.group == "budget"]

    def epochs(rows: list[Row], asked: int | None) -> set[int]:
        return {job.epochs for job in architectures.trainings(rows, tmp_path, epochs=asked)}

    # A thousand epochs of 60,000 images would take weeks.
    assert (epochs(sets, None), epochs(drawn, None)) == ({1000}, {3})
    assert epochs([*sets, *drawn], 7) == {7}


def test_networks_of_more_epochs_take_the_place_of_others_in_the_table(tmp_path: Path) -> None:
    finished(tmp_path)
    for epochs in (1, 30):
        train(architectures.trainings([ROW], tmp_path, networks=1, epochs=epochs))
    longest = json.loads(next(tmp_path.glob("*-30epochs.json")).read_text())
    text = architectures.markdown([ROW], tmp_path)
    assert f"| {100 * longest['accuracy']:.2f} (1 network, 30 epochs) |" in text


def test_networks_on_the_releases_of_several_seeds_are_told_by_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        finished(tmp_path, run_id=f"run-{seed}", seed=seed)
    jobs = architectures.trainings([ROW], tmp_path, networks=1, epochs=30, releases=2)
    assert [job.place.seed for job in jobs] == [0, 1]
    train(jobs)
    accuracies = [100 * json.loads(job.finished.read_text())["accuracy"] for job in jobs]
    spread = f"{fmean(accuracies):.2f} ± {stdev(accuracies):.2f}"
    assert f"| {spread} (2 seeds, 1 network, 30 epochs) |" in architectures.markdown(
        [ROW], tmp_path
    )


def test_no_more_releases_are_asked_for_than_a_row_has_seeds(tmp_path: Path) -> None:
    jobs = architectures.trainings([ROW], tmp_path, networks=1, releases=9)
    assert [job.place.seed for job in jobs] == list(ROW.seeds)


def test_networks_trained_on_what_an_earlier_run_released_do_not_count(tmp_path: Path) -> None:
    finished(tmp_path)
    jobs = architectures.trainings([ROW], tmp_path, networks=1, epochs=1)
    train(jobs)
    finished(tmp_path, run_id="another-run")
    assert not jobs[0].is_kept()
    assert architectures.markdown([ROW], tmp_path) == ""


def test_a_curve_has_accuracy_and_epsilon_of_every_snapshot(tmp_path: Path) -> None:
    place = finished(tmp_path)
    train(convergence.trainings([ROW], tmp_path, classifier="mlp-psg", epochs=60))
    first, last = convergence.curve(ROW, tmp_path)
    assert (first["queries"], last["queries"]) == (4, 8)
    assert first["accuracy"] < 0.3 < last["accuracy"]
    kept = place.read()
    assert kept is not None and last["epsilon"] == kept["epsilon"]
    picture = tmp_path / "curve.png"
    assert convergence.draw(find("psg"), "digits", [ROW], tmp_path, picture) and picture.exists()


def test_the_first_queries_cost_what_so_many_poisson_samples_cost_and_not_the_whole() -> None:
    ledger = Ledger(Budget(10.0))
    ledger.pay(QUERY)
    one = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5))
    four = cost_of([dp.SelfComposedDpEvent(one, 4)], 1e-5).epsilon
    assert epsilon_after(4, ledger) == pytest.approx(four)
    assert epsilon_after(8, ledger) == ledger.epsilon != pytest.approx(four, rel=0.05)
    assert epsilon_after(0, ledger) == 0


def test_tasks_one_after_another_have_a_table_and_a_picture(tmp_path: Path) -> None:
    finished(tmp_path, accuracy_after_1=0.9, accuracy_after_2=0.7, accuracy_after_2_std=0.02)
    measured = [measure(ROW, (0,), tmp_path)]
    assert "| a tiny set | 90.00 | 70.00 ± 2.00 |" in continual.markdown(measured)
    assert continual.draw(find("psg"), "digits", measured, tmp_path / "tasks.png")
    assert (tmp_path / "tasks.png").exists()
    assert continual.markdown([measure(replace(ROW, label="other"), (0,), tmp_path)]) == ""


def test_a_published_figure_whose_epsilon_holds_stands_on_the_axis(tmp_path: Path) -> None:
    row = replace(ROW, published=PublishedFigure(0.9, epsilon=10, holds=True))
    finished(tmp_path, row=row)
    beside = replace(row, published=PublishedFigure(0.9, epsilon=10))
    pictures = []
    for number, one in enumerate((row, beside, ROW)):
        picture = tmp_path / f"{number}.png"
        assert draw_curves(find("psg"), "digits", [measure(one, (0,), tmp_path)], picture)
        pictures.append(picture.read_bytes())
    assert len(set(pictures)) == 3  # on the axis, beside it, and not there at all


def test_other_steps_leave_out_rows_that_have_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["psg", "--dataset", "digits", "--out", str(tmp_path), "--architectures", "--curves"]
    assert main([*words, "--no-report"]) == 0
    assert "spc 20, epsilon 10: has not run yet, left out" in capsys.readouterr().err
    assert not list((tmp_path / "psg").iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--architectures", "vgg"], "no architecture 'vgg' (did you mean 'vgg11'?)"),
        (["--curves", "--epochs", "0"], "--epochs 0 is out of range: it must be at least 1"),
        (["--dataset", "svhn"], "psg has no rows on 'svhn'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["psg", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"reproduce_tables: {line}") and error.count("\n") == 1


def test_a_row_whose_run_is_gone_leaves_the_curves_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = finished(tmp_path, convnet_accuracy=0.5)
    shutil.rmtree(runs_folder())
    assert convergence.trainings([ROW], tmp_path, epochs=1) == []
    assert "left out" in capsys.readouterr().err
    assert place.read() is not None
