"""The drawings: bars to one scale, places on logarithmic scales, every text made safe."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from governor.text.svg import Axis, Bar, Plot, Series, colours_of, curves, figure, stacked, standalone

SVG = "{http://www.w3.org/2000/svg}"


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    drawn = svg[svg.index("<svg") :].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return list(ElementTree.fromstring(drawn).iter(SVG + tag))


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "nan"))


def test_bars_have_the_width_of_their_parts_and_stand_end_to_end() -> None:
    svg = stacked(
        [Bar("one", {"a": 10.0, "b": 30.0}, "40", 80.0), Bar("<two>", {"a": 20.0, "b": 0.0}, "20")],
        colours_of(["a", "b"]), "GB",
    )  # fmt: skip
    first, second, third, _ = elements(svg, "rect")
    assert number(second, "width") == pytest.approx(3 * number(first, "width"), rel=1e-3)
    assert number(third, "width") == pytest.approx(2 * number(first, "width"), rel=1e-3)
    assert number(second, "x") == pytest.approx(number(first, "x") + number(first, "width"), abs=0.1)
    limit = next(path for path in elements(svg, "path") if path.get("class") == "limit")
    at = float(re.findall(r"[\d.]+", limit.get("d", ""))[0])
    assert at - number(first, "x") == pytest.approx(8 * number(first, "width"), rel=1e-3)


def test_twice_as_much_is_as_far_away_everywhere() -> None:
    svg = curves([Series("one", [(1.0, 10.0, ""), (2.0, 20.0, ""), (4.0, 40.0, "a & b")])], "hours", "$")
    points = [(number(one, "cx"), number(one, "cy")) for one in elements(svg, "circle")]
    steps = [(after[0] - before[0], before[1] - after[1]) for before, after in pairwise(points)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)
    assert steps[0][0] > 0
    assert steps[0][1] > 0


@pytest.mark.parametrize(("low", "high"), [(0.0, 5e-324), (-5e-324, 0.0), (0.0, 1e-323), (-1.7e308, 1.7e308)])
def test_the_ends_of_what_a_float_holds_have_a_place_on_an_axis(low: float, high: float) -> None:
    axis = Axis(low, high)
    assert 0 <= axis.part(low) <= axis.part(high) <= 1


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [1e-3, 1e9]])
def test_one_point_and_nine_powers_of_ten_are_drawn_with_marks_to_read(values: list[float]) -> None:
    svg = curves([Series("one", [(value, value, "") for value in values])], "x", "y")
    assert 2 <= len([text for text in elements(svg, "text") if (text.text or "x")[0].isdigit()]) < 40
    assert all(0 <= number(one, "cx") <= 1000 for one in elements(svg, "circle"))


def test_nothing_to_draw_is_nothing() -> None:
    assert curves([], "x", "y") == ""
    assert (figure(12345.6), figure(0.12345)) == ("12,346", "0.123")


def test_names_of_curves_that_end_together_do_not_lie_over_one_another() -> None:
    plot = Plot(Axis(0, 1, marks=[]), Axis(0, 100, marks=[]))
    plot.names([(50.0, "b <& c", "red"), (50.5, "a", "red"), (3.0, "d", "red")])
    places = [(text.text, number(text, "y")) for text in elements(plot.svg(), "text")]
    assert [name for name, _ in places] == ["a", "b <& c", "d"]
    assert all(below - above >= 14 for (_, above), (_, below) in pairwise(places))


def test_a_band_reaches_to_both_extremes_and_the_largest_numbers_have_a_place() -> None:
    plot = Plot(Axis(0, 1, marks=[]), Axis(-1.7e308, 1.7e308, marks=[]), height=100, top=10, bottom=10)
    plot.band([(0.0, -1.7e308, 0.0), (1.0, 0.0, 1.7e308)], "blue")
    [band] = elements(plot.svg(), "polygon")
    heights = [float(point.split(",")[1]) for point in band.get("points", "").split()]
    assert heights == [50.0, 10.0, 50.0, 90.0]


def test_a_file_of_plots_has_them_below_one_another() -> None:
    plots = [Plot(Axis(1, 2), Axis(1, 2), height=height, title=f"a & {height}") for height in (100, 200)]
    [root] = ElementTree.fromstring(standalone(plots)).iter(SVG + "svg")
    assert root.get("viewBox") == "0 0 1000 300"
    assert [group.get("transform") for group in root.findall(SVG + "g")] == ["translate(0 0)", "translate(0 100)"]
    assert root.get("aria-label") == "a & 100; a & 200"
