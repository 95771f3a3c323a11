"""Charts: every place is inside the drawing, values keep their order, and each part says what it is."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.report import svg
from diagnostics.report.document import Axis, Bar, Bars, Curve, Dot, Mark, Plot, Stretch, Tracks, axis, round_values

FINITE = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def numbers(markup: str, attribute: str) -> list[float]:
    return [float(value.rstrip("%")) for value in re.findall(rf' {attribute}="(-?[\d.]+)%?"', markup)]


def written_beside(drawn: str) -> list[str]:
    """The values at the left of a plot."""
    return re.findall(r'<text x="-6" y="[\d.]+" text-anchor="end">([^<]+)<', drawn)


def plot(*curves: Curve, marks: tuple[Mark, ...] = (), log: bool = False, low: float = 0.0, high: float = 10.0) -> Plot:
    x = Axis("{:g}".format, low, high, log, (low, (low + high) / 2, high))
    return Plot("Loss", x, Axis("{:g}".format, low, high, log), curves, marks)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=6))
@settings(max_examples=25)
def test_points_are_inside_and_keep_their_order(points: list[tuple[float, float]]) -> None:
    points.sort()
    chart = Plot(
        "p", axis(str, [x for x, _ in points]), axis(str, [y for _, y in points]), (Curve("c", tuple(points)),)
    )
    (drawn,) = re.findall(r'<polyline points="([^"]+)"', svg.plot(chart))
    places = [tuple(map(float, place.split(","))) for place in drawn.split()]
    assert all(0 <= x <= 1000 and 0 <= y <= chart.height for x, y in places)
    assert all(before[0] <= after[0] for before, after in pairwise(places))
    highest, lowest = max(points, key=lambda point: point[1]), min(points, key=lambda point: point[1])
    assert places[points.index(highest)][1] <= places[points.index(lowest)][1], "up is more"


def test_equal_values_are_drawn_in_the_middle() -> None:
    chart = Plot("p", axis(str, [0.0, 1.0]), axis(str, [7.0, 7.0]), (Curve("c", ((0.0, 7.0), (1.0, 7.0))),))
    assert 'points="10.0,145.0 990.0,145.0"' in svg.plot(chart)


def test_one_value_stands_in_the_middle() -> None:
    chart = Plot("p", Axis(str, 3.0, 3.0), Axis(str, 0.0, 1.0), (Curve("c", ((3.0, 0.5),)),))
    assert 'points="500.0,' in svg.plot(chart)


def test_what_lies_outside_stands_at_the_edge() -> None:
    drawn = svg.plot(plot(Curve("c", ((-5.0, -9.0), (20.0, 99.0)))))
    (points,) = re.findall(r'<polyline points="([^"]+)"', drawn)
    assert points == "10.0,272.0 990.0,18.0"


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (1.0, 100.0, [1, 2, 5, 10, 20, 50, 100]),
        (1.0, 1e6, [1, 10, 100, 1e3, 1e4, 1e5, 1e6]),
        (2.2, 4.4, [2.2, 2.61626, 3.11127, 3.69994, 4.4]),
    ],
)
def test_a_logarithmic_axis_has_round_levels_where_two_fit(low: float, high: float, levels: list[float]) -> None:
    drawn = svg.plot(plot(log=True, low=low, high=high))
    assert [float(text) for text in written_beside(drawn)] == levels


def test_a_linear_axis_has_round_levels_and_ticks_where_they_are_given() -> None:
    drawn = svg.plot(plot())
    assert written_beside(drawn) == ["0", "2.5", "5", "7.5", "10"]
    below = re.findall(r'y="292" text-anchor="(\w+)">([^<]+)<', drawn)
    assert below == [("start", "0"), ("middle", "5"), ("end", "10")]


@given(FINITE, st.floats(1e-6, 1e6), st.integers(4, 8), st.sampled_from([10.0, 1024.0]))
def test_round_values_are_inside_and_equally_far_apart(low: float, span: float, most: int, base: float) -> None:
    values = round_values(low, low + span, most, base)
    slack = 1e-6 * span + 1e-12 * abs(low)
    assert 2 <= len(values) <= most + 1 and low - slack <= values[0] and values[-1] <= low + span + slack
    step = values[1] - values[0]
    assert all(after - before == pytest.approx(step, rel=1e-3) for before, after in pairwise(values))


def test_round_values_are_written_with_few_digits() -> None:
    assert round_values(3.47, 5.44, 4) == [3.5, 4.0, 4.5, 5.0]
    assert round_values(0.0, 21 * 1024.0**2, 4, 1024.0) == [n * 10 * 1024.0**2 for n in range(3)]
    assert round_values(7.0, 7.0, 4) == [7.0]


def test_a_long_value_beside_a_plot_gets_more_room() -> None:
    long = Plot("p", Axis(str, 0.0, 1.0), Axis("{:g} tokens/s".format, 0.0, 1.0), ())
    assert 'class="plot wide"' in svg.plot(long) and 'class="plot"' in svg.plot(plot())


def test_names_of_steps_stand_above_the_ticks() -> None:
    drawn = svg.plot(plot(marks=(Mark("step 3", x=0.0, tone="step"),)))
    step, tick = (
        float(re.findall(rf'y="([\d.]+)" text-anchor="start"[^>]*>{text}<', drawn)[0]) for text in ("step 3", "0")
    )
    assert tick - step >= 14, "a text is 12 pixels high"


def test_on_a_phone_there_are_few_ticks() -> None:
    x = Axis("{:g}".format, 0.0, 9.0, False, tuple(map(float, range(10))))
    drawn = svg.plot(Plot("p", x, Axis(str, 0.0, 1.0), ()))
    ticks = re.findall(r'text-anchor="\w+"( class="spare")?>\d<', drawn)
    assert len(ticks) == 10 and sum(not spare for spare in ticks) <= 4


def test_an_area_lies_between_its_curve_and_its_lower_edge() -> None:
    (points,) = re.findall(
        r'<polygon points="([^"]+)"', svg.plot(plot(Curve("c", ((0.0, 10.0), (10.0, 5.0)), lower=(0.0, 5.0))))
    )
    ys = [float(place.split(",")[1]) for place in points.split()]
    assert ys == [18.0, 145.0, 145.0, 272.0], "forwards above, backwards below"


def test_marks_dots_and_intervals_are_drawn_with_their_hints() -> None:
    marks = (Mark("limit", y=5.0), Mark("step 3", x=2.0, tone="step"), Mark("peak 7", 4.0, 7.0, "peak", "peak at 4"))
    curve = Curve(
        "c", ((0.0, 1.0), (4.0, 7.0)), dots=(Dot(4.0, 7.0, "the highest", (6.0, 8.0)),), stroke="dashed", strong=True
    )
    drawn = svg.plot(plot(curve, marks=marks))
    for hint in (
        "<title>limit</title>",
        "<title>step 3</title>",
        "<title>peak at 4</title>",
        "<title>the highest</title>",
    ):
        assert hint in drawn
    assert drawn.index("peak at 4") > drawn.index("the highest"), "a peak lies on top"
    assert 'stroke-dasharray="7 4"' in drawn and "strong" in drawn and drawn.count("<circle") == 2


def test_bars_share_one_scale_and_their_parts_follow_each_other() -> None:
    bars = (Bar("a", (1.0, 3.0), ("one", "three"), "4"), Bar("b", (2.0, 0.0), ("two", "none"), "2"))
    drawn = svg.bars(Bars("label", bars, ("first", "second")))
    assert numbers(drawn, "width") == [25.0, 75.0, 50.0, 0.0] and numbers(drawn, "x") == [0.0, 25.0, 0.0, 50.0]
    assert "<title>a, second: three</title>" in drawn and "legend" in drawn


def test_a_bar_with_an_interval_makes_room_for_it() -> None:
    drawn = svg.bars(Bars("label", (Bar("a", (5.0,), ("five",), "5", (4.0, 10.0), 3),)))
    assert numbers(drawn, "width") == [50.0] and numbers(drawn, "x2") == [100.0, 40.0, 100.0]
    assert 'class="k3"' in drawn and "legend" not in drawn


def test_bars_without_length_or_below_zero_are_empty() -> None:
    drawn = svg.bars(Bars("label", (Bar("a", (0.0, -2.0), ("0", "-2"), ""),), ("x", "y")))
    assert numbers(drawn, "width") == [0.0, 0.0]
    assert svg.bars(Bars("label", ())).startswith("<figure")


@pytest.mark.parametrize(("width", "last"), [(1600.0, "1,600 ms"), (20.0, "20 ms"), (0.5, "0.5 ms")])
def test_the_scale_of_a_timeline_is_written_in_plain_numbers(width: float, last: str) -> None:
    drawn = str(svg.tracks(Tracks("t", (("rank 0", (), ""),), width, unit="ms")))
    assert f">{last}<" in drawn and "e+" not in drawn


def test_tracks_share_one_scale_and_thin_stretches_stand_above() -> None:
    parts = (Stretch(0, 5, "k0", "forward", thin=True), Stretch(5, 30, "k5", "<all_reduce>"))
    drawn = svg.tracks(Tracks("t", (("rank 0", parts, "10 ms"), ("rank 1", (), "")), 20))
    assert numbers(drawn, "x") == [0, 25] and numbers(drawn, "width") == [25, 75], "cut at the end of the scale"
    assert numbers(drawn, "y") == [0, 7] and "&lt;all_reduce&gt;" in drawn and drawn.count('class="row"') == 2


@pytest.mark.parametrize(("ranks", "height"), [(2, 41), (9, 24)])
def test_a_timeline_of_few_ranks_is_taller(ranks: int, height: int) -> None:
    row = ("rank", (Stretch(0, 5, "k0", "forward", thin=True), Stretch(5, 9, "k5", "all_reduce")), "9 ms")
    drawn = svg.tracks(Tracks("t", (row,) * ranks, 9.0, unit="ms"))
    assert drawn.count(f'<svg class="bar" height="{height}"') == ranks
