from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.plots import HEIGHT, WIDTH, axis, bars, curves, ticks
from benchmarks.spread import Spread

SVG = "{http://www.w3.org/2000/svg}"
ORDER = ["execd", "FastAPI & Co"]
SERIES = {
    "execd": {0.0: Spread(1, 0.9, 1.1), 4.0: Spread(2, 1.5, 9), 64.0: Spread(3, 3, 3)},
    "FastAPI & Co": {0.0: Spread(4, 4, 4)},
}


def test_a_plot_has_the_same_bytes_for_the_same_values() -> None:
    first = curves("t", "x", "y", SERIES, ORDER)
    assert curves("t", "x", "y", SERIES, ORDER) == first


def test_a_curve_has_a_line_for_each_subject_and_a_point_for_each_x() -> None:
    drawing = ET.fromstring(curves("t", "x", "y", SERIES, ORDER))
    lines = drawing.findall(f"{SVG}polyline")
    assert [len(line.get("points", "").split()) for line in lines] == [3, 1]
    assert len(drawing.findall(f"{SVG}circle")) == 4
    texts = [each.text for each in drawing.findall(f"{SVG}text")]
    assert {"t", "x", "y", "execd", "FastAPI & Co", "0", "4", "64"} <= set(texts)


def test_all_points_are_inside_the_drawing() -> None:
    drawing = ET.fromstring(curves("t", "x", "y", SERIES, ORDER))
    for circle in drawing.findall(f"{SVG}circle"):
        assert 0 < float(circle.get("cx", "")) < WIDTH
        assert 0 < float(circle.get("cy", "")) < HEIGHT


def test_more_is_higher_and_further_right() -> None:
    drawing = ET.fromstring(curves("t", "x", "y", SERIES, ORDER))
    [line, _] = drawing.findall(f"{SVG}polyline")
    points = [tuple(map(float, each.split(","))) for each in line.get("points", "").split()]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_a_subject_keeps_its_colour_where_another_has_no_values() -> None:
    both = bars("t", "ms", {name: Spread(1, 1, 1) for name in ORDER}, ORDER)
    one = bars("t", "ms", {ORDER[1]: Spread(1, 1, 1)}, ORDER)
    colours = [
        [each.get("fill") for each in ET.fromstring(drawing).findall(f"{SVG}rect")][1:]
        for drawing in (both, one)
    ]
    assert colours[0][1:] == colours[1]


def test_a_bar_is_as_long_as_the_median_and_tells_it() -> None:
    values = {"execd": Spread(1, 1, 1), "FastAPI & Co": Spread(2, 2, 4)}
    drawing = ET.fromstring(bars("t", "ms", values, ORDER))
    [_, first, second] = drawing.findall(f"{SVG}rect")
    assert float(second.get("width", "")) == pytest.approx(2 * float(first.get("width", "")), 0.01)
    assert {"1.00 ms", "2.00 ms"} <= {each.text for each in drawing.findall(f"{SVG}text")}


def test_zero_has_a_place_left_of_all_other_values() -> None:
    made = axis([0, 4, 64], 0, 100)
    assert made.at(0) == 0 < made.at(4) < made.at(64) == 100


def test_a_curve_that_is_zero_everywhere_still_has_an_axis() -> None:
    assert axis([0], 0, 100).at(0) == 0


def test_a_single_value_is_in_the_middle_of_its_axis() -> None:
    assert axis([5], 0, 100).at(5) == 50


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1, 10, [1, 2, 5, 10]), (0.9, 3, [1, 2]), (1, 100_000, [1, 10, 100, 1000, 10_000, 100_000])],
)
def test_ticks_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_title_shows_no_signs_of_markdown() -> None:
    drawing = ET.fromstring(bars("Latency of `true`", "ms", {"execd": Spread(1, 1, 1)}, ORDER))
    assert drawing.findtext(f"{SVG}title") == "Latency of true"
