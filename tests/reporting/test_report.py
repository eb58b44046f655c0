from __future__ import annotations

import json
import re

import pytest

from dpray.errors import BadInput
from dpray.privacy.card import Card, verify
from dpray.reporting.groups import group_runs
from dpray.reporting.plots import PUBLISHED_LABEL
from dpray.reporting.report import write_report

PNG = b"\x89PNG\r\n\x1a\n and the rest"


def rows_of(page: str) -> list[str]:
    """The rows of the first table, as text."""
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    return [re.sub("<[^>]*>", " ", row) for row in body.split("</tr>")[:-1]]


def test_two_seeds_are_one_row_with_mean_and_standard_deviation(make_recorded, written):
    page = written(
        make_recorded("a", seed=0, test_accuracy=0.90, core_seconds=60.0),
        make_recorded("b", seed=1, test_accuracy=0.92, core_seconds=180.0),
    )
    (row,) = rows_of(page)
    # Standard deviation of a sample: |0.92 - 0.90| / sqrt(2).
    assert row.split()[0] == "dp-sgd"
    assert re.search(r"91\.00\s+± 1\.41", row)
    assert re.search(r"to release all 2 runs\s+1e-5\s+2\s", row)
    assert re.search(r"1\.41\s+2\s+yes", row)  # mean core-minutes


def test_other_settings_are_another_row_that_says_what_differs(make_recorded, written):
    page = written(
        make_recorded("a", settings={"lr": "0.1", "model": "linear"}, test_accuracy=0.6),
        make_recorded("b", settings={"lr": "0.1", "model": "<cnn>"}, test_accuracy=0.7),
    )
    best, other = rows_of(page)
    assert "model=&lt;cnn&gt;" in best.split("settings")[0] and "lr=" not in best.split("sett")[0]
    assert "model=linear" in other


def test_rows_go_by_epsilon_and_then_by_accuracy(make_recorded):
    groups = group_runs(
        [
            make_recorded("a", noise=1.0, test_accuracy=0.99),
            make_recorded("b", method="dp-merf", test_accuracy=0.5),
            make_recorded("c", test_accuracy=0.6),
        ]
    )["mnist"]
    assert [group.first.run_id for group in groups] == ["c", "b", "a"]


def test_each_classifier_and_the_kind_of_fid_have_their_columns(make_recorded, written):
    page = written(
        make_recorded("a", method="x", lr_accuracy=0.7, cnn_accuracy=0.8, domain_fid=12.0),
        make_recorded("b", method="y", lr_accuracy=0.6, fid=55.5),
    )
    heads = re.findall(r'<th scope="col">([^<]*)', page.split("</thead>")[0])
    assert {"LR, %", "CNN, %", "FID"} < set(heads) and "MLP, %" not in heads and "IS" not in heads
    x, y = rows_of(page)
    assert re.search(r"12\.00\s+domain", x) and "55.50" in y and "domain" not in y


def test_a_run_that_is_not_fit_for_release_says_why(make_recorded, written):
    page = written(make_recorded(for_tests=True))
    assert re.search(r"NO\s+the noise came from an insecure test key", rows_of(page)[0])
    assert "Not fit for release: 1 of 1 on this page" in page


def test_a_card_that_its_own_events_contradict_is_not_called_fit(make_recorded, written):
    run = make_recorded()
    object.__setattr__(run.card, "epsilon", run.card.epsilon / 2)
    assert re.search(r"NO\s+the card of run-1 cannot be trusted", rows_of(written(run))[0])


def test_names_from_outside_cannot_become_markup(make_recorded, written):
    bad = "<script>alert(1)</script>"
    page = written(
        make_recorded(f'{bad}"', dataset=bad, method=bad, samples=PNG, settings={bad: bad}),
        make_recorded("second", dataset=bad, method="&b$"),
    )
    assert "<script" not in page and "&lt;script&gt;" in page
    assert 'alt="Grid of synthetic images by &lt;script&gt;' in page


def test_published_figures_are_called_so_in_the_plot(make_recorded, written):
    page = written(make_recorded(test_accuracy=0.9))
    svg = page.split("<svg")[1].split("</svg>")[0]
    assert PUBLISHED_LABEL in svg and "PSG [1]" in svg
    assert 'href="comparison.html#dataset-1"' in page  # where their sources are


def test_own_data_have_no_published_figures_though_the_file_is_called_mnist(make_recorded, written):
    page = written(
        make_recorded("a", dataset="/somewhere/mnist.npz", test_accuracy=0.9),
        make_recorded("b", dataset="/somewhere/mnist.npz", noise=1.0, test_accuracy=0.9),
    )
    assert "<svg" in page and PUBLISHED_LABEL not in page


def test_the_page_needs_nothing_from_elsewhere(make_recorded, written):
    page = written(make_recorded(samples=PNG, test_accuracy=0.9))
    loaded = re.findall(r'(?:src|href|action)\s*=\s*"([^"]*)"', page)
    assert any(address.startswith("data:image/png;base64,") for address in loaded)
    assert not [address for address in loaded if "//" in address]
    assert "@import" not in page and "url(" not in page.replace("url(#", "")


def test_every_run_has_its_card_beside_the_page(make_recorded, written, tmp_path):
    page = written(make_recorded("run-1"), make_recorded("../../run 2", seed=1))
    links = re.findall(r'href="(cards/[^"]*)"', page)
    assert len(links) == 4
    for link in links:
        assert (tmp_path / "report" / link).resolve().parent == tmp_path / "report" / "cards"
    verify(Card.read(tmp_path / "report" / "cards" / "run-1.json"))
    assert "Privacy card of run-1" in (tmp_path / "report" / "cards" / "run-1.txt").read_text()


def test_the_ledger_shows_what_each_query_costs_alone(make_recorded, written):
    run = make_recorded(noise=4.0)
    ledger = written(run).split("Where the budget went")[1]
    assert ledger.index("class sums") < ledger.index("hold-out count")
    assert "Gaussian, noise multiplier 4" in ledger and "hold-out records" in ledger
    assert f"All together: epsilon <b>{run.card.epsilon:.3g}</b>" in ledger


def test_a_noisy_accuracy_is_called_noisy(make_recorded, written):
    run = make_recorded(noisy=frozenset({"test_accuracy"}), test_accuracy=0.9)
    assert "noisy count on a private hold-out" in rows_of(written(run))[0]


def test_other_files_in_the_folder_stay_and_own_ones_are_replaced(make_recorded, written, tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    written(make_recorded())
    written(make_recorded())  # a report of ours is replaced
    assert (folder / "notes.txt").read_text() == "mine"
    assert json.loads((folder / "cards" / "run-1.json").read_text())["run_id"] == "run-1"


@pytest.mark.parametrize("name", ["index.html", "comparison.html"])
def test_a_page_of_somebody_else_is_not_replaced(name, make_recorded, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match="no report of dpray"):
        write_report([make_recorded()], tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "cards").exists()


def test_a_file_is_no_folder_for_a_report(make_recorded, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(BadInput, match="is a file: name a folder"):
        write_report([make_recorded()], tmp_path / "taken")
