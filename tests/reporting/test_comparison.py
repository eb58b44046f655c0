"""comparison.html: all methods, epsilon against accuracy, with cost."""

from __future__ import annotations

import re

import pytest

from dpray.reporting.plots import PUBLISHED_LABEL, UNFIT_LABEL
from dpray.reporting.published import published_on

SYNTHETIC = {"kind": "synthesizer", "mlp_accuracy": 0.6, "lr_accuracy": 0.5, "domain_fid": 321.0}
# Noise multipliers of one Gaussian sum that cost just these epsilons at delta 1e-5.
AT_EPSILON_1, AT_EPSILON_10 = 3.73, 0.4999


def table_of(page: str) -> list[dict[str, str]]:
    """The first table, a dict a row."""
    heads = re.findall(r'<th scope="col">([^<]*)', page.split("</thead>")[0])
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.split(r"<t[hd][^>]*>", row)[1:] for row in body.split("</tr>")[:-1]]
    texts = [[" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in row] for row in rows]
    return [dict(zip(heads, row, strict=True)) for row in texts]


def texts_of(page: str) -> list[str]:
    """What is written into the wide plot."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", page.split("</svg>")[0])


def test_a_row_says_what_it_is_what_it_costs_and_what_epsilon_covers(make_recorded, compared):
    page = compared(
        make_recorded("a", method="dp-merf", test_accuracy=0.8, core_seconds=90.0, **SYNTHETIC),
        make_recorded("b", method="dp-merf", seed=1, test_accuracy=0.82, core_seconds=150.0),
    )
    (row,) = table_of(page)
    assert row["Kind"] == "synthesizer" and row["Epsilon covers"] == "one run"
    assert row["Runs"] == "2" and row["Test accuracy, %"] == "81.00 ± 1.41"
    assert row["MLP, %"] == "60.00" and row["LR, %"] == "50.00"
    assert row["FID"] == "321.00 domain" and row["Core-minutes a run"] == "2"
    assert row["Fit for release"] == "yes"


def test_methods_go_by_epsilon_and_then_by_accuracy(make_recorded, compared):
    page = compared(
        make_recorded("a", method="psg", noise=1.0, test_accuracy=0.99),
        make_recorded("b", method="dp-merf", test_accuracy=0.5),
        make_recorded("c", test_accuracy=0.6),
    )
    assert [row["Method"].split()[0] for row in table_of(page)] == ["dp-sgd", "dp-merf", "psg"]


def test_every_method_is_named_in_the_plot_with_accuracy_and_cost(make_recorded, compared):
    page = compared(
        make_recorded("a", dataset="digits", test_accuracy=0.91, core_seconds=90.0),
        make_recorded("b", dataset="digits", method="dp-vae", test_accuracy=0.91),
    )
    assert {"dp-sgd 91.0 (1.5 min)", "dp-vae 91.0"} < set(texts_of(page))
    assert PUBLISHED_LABEL not in page and UNFIT_LABEL not in texts_of(page)


def test_what_is_not_fit_for_release_is_crossed_out_and_says_why(make_recorded, compared):
    page = compared(make_recorded("a", for_tests=True), make_recorded("b", method="dp-vae"))
    assert UNFIT_LABEL in texts_of(page)
    marked = {row["Method"]: row["Fit for release"] for row in table_of(page)}
    assert marked["dp-sgd"].startswith("NO the noise came from") and marked["dp-vae"] == "yes"


def test_a_run_without_privacy_is_a_dashed_line_and_the_last_row(make_recorded, compared):
    ceiling = make_recorded("a", method="sgd", dataset="digits", test_accuracy=0.99)
    object.__setattr__(ceiling.card, "epsilon", None)
    page = compared(ceiling, make_recorded("b", dataset="digits", test_accuracy=0.9))
    assert "sgd, no privacy: 99.0 %" in texts_of(page) and "stroke-dasharray" in page
    assert not any(text.startswith("sgd 99") for text in texts_of(page))
    assert [row["Epsilon"] for row in table_of(page)][-1] == "infinite"


@pytest.mark.parametrize(
    ("method", "noise", "figures", "cost"),
    [
        ("gs-wgan", AT_EPSILON_10, ("84.9 [1]", "80.0 [2]", "78.3 [4]", "75.3 [5]"), "about 330"),
        ("dp-merf", AT_EPSILON_1, ("72.7 [1]", "83.9 [4]", "80.3 [5]"), "0.726"),
        ("vaegm", AT_EPSILON_1, (), "–"),  # noqa: RUF001
    ],
)
def test_published_figures_stand_beside_a_row_with_their_true_cost(
    method, noise, figures, cost, make_recorded, compared
):
    other = make_recorded("b", method="dp-merf", noise=AT_EPSILON_10)  # so that there is a column
    rows = table_of(compared(make_recorded("a", method=method, noise=noise), other))
    row = next(row for row in rows if row["Method"] == method)
    assert row["Published, not measured here, %"] == (" ".join(figures) or cost)
    assert cost in row["What the published one truly costs"]


def test_a_claimed_epsilon_that_does_not_hold_is_called_a_claim_in_the_plot(
    make_recorded, compared
):
    page = compared(make_recorded(method="gs-wgan", noise=AT_EPSILON_10, test_accuracy=0.7))
    texts = texts_of(page)
    assert "GS-WGAN [1] 84.9, claimed" in texts and "DP-MERF [1] 85.7" in texts
    assert PUBLISHED_LABEL in texts and "gs-wgan 70.0" in texts


def test_all_published_figures_are_in_a_table_of_their_own(make_recorded, compared):
    page = compared(make_recorded())
    published = page.split("Published figures on mnist, not measured here")[1]
    assert published.count('<th scope="row"') == len(published_on("mnist"))
    assert "Private Set Generation" in published.split("</table>")[1]


def test_one_run_and_a_hundred_runs_make_a_page_that_needs_nothing_else(make_recorded, compared):
    one = compared(make_recorded(dataset="digits"))
    assert len(table_of(one)) == 1 and "<svg" in one
    page = compared(
        *(
            make_recorded(
                f"run-{i}", method=f"method-{i % 20}", dataset="digits", settings={"lr": str(i)}
            )
            for i in range(100)
        )
    )
    assert len(table_of(page)) == 100
    assert {f"method-{i} 50.0" for i in range(20)} < set(texts_of(page))
    loaded = re.findall(r'(?:src|href|action)\s*=\s*"([^"#]+)"', page)
    assert set(loaded) == {"index.html"}
