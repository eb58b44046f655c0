from __future__ import annotations

import itertools

from dpray.reporting.labels import Label, place, spread
from dpray.reporting.svg import look_of


def label(name: str, x: float, y: float) -> Label:
    return Label(name, f"{name} {y:.1f}", "black", x, y)


def test_names_are_moved_apart_no_further_than_need_be():
    assert spread([1.0, 5.0], 1.0, 10.0) == [1.0, 5.0]
    assert spread([4.0, 4.0, 4.0], 1.0, 10.0) == [3.0, 4.0, 5.0]
    assert spread([9.5, 10.0], 2.0, 10.0) == [8.0, 10.0]


def test_names_of_twenty_methods_at_one_height_do_not_touch_or_leave_the_plot():
    for height in (0.0, 150.0, 300.0):
        placed = place([label(f"method-{i}", 50, height) for i in range(20)], 8.0, 300.0)
        heights = sorted(one.y for one in placed)
        assert len(heights) == 20 and heights[0] > 0 and heights[-1] <= 300
        assert min(b - a for a, b in itertools.pairwise(heights)) > 8


def test_epsilons_far_apart_have_columns_of_their_own():
    left, right = place([label("a", 10, 50), label("a", 400, 60)], 8.0, 300.0)
    assert (left.label.x, right.label.x) == (10, 400)
    assert 10 < left.x < 50 and left.x < right.x


def test_epsilons_close_together_share_a_column_right_of_all_marks():
    marks = [label("a", 10, 90), label("a", 40, 50), label("b", 70, 20), label("b", 70, 30)]
    placed = place(marks, 8.0, 300.0)
    assert [(one.label.name, one.label.y) for one in placed] == [("b", 30), ("a", 50)]
    assert all(one.x > 70 for one in placed)


def test_no_two_of_many_methods_look_alike():
    assert len({look_of(number) for number in range(64)}) == 64
