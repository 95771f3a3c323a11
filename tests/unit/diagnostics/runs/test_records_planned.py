"""What was planned beside what was measured, of plans that may be anybody's."""

import pytest
from hypothesis import given, strategies as st

from diagnostics.runs.records import FIGURES, planned_and_measured

PLAN = {"peak_bytes": 2**30, "time": {"step_s": 0.5}, "traffic": [{"size_bytes": 100}, {"size_bytes": 24}]}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def test_every_planned_figure_has_its_measured_one() -> None:
    measured = {"peak_memory_bytes": 2**29, "communicated_bytes_per_step": 124}
    assert [row[1:] for row in planned_and_measured(PLAN, measured)] == [
        ("peak_memory_bytes", 2**30, 2**29),
        ("step_time_s", 0.5, None),
        ("communicated_bytes_per_step", 124, 124),
    ]


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"peak_bytes": "large"}, "peak_memory_bytes"),
        ({"time": None}, "step_time_s"),
        ({"time": {"step_s": float("nan")}}, "step_time_s"),
        ({"traffic": None}, "communicated_bytes_per_step"),
        ({"traffic": [{"size_bytes": 1}, {}]}, "communicated_bytes_per_step"),
    ],
)
def test_what_a_plan_does_not_say_is_left_out(change: dict[str, object], missing: str) -> None:
    names = [row[1] for row in planned_and_measured({**PLAN, **change}, {})]
    assert names == [name for _, name in FIGURES if name != missing]


def test_a_job_of_one_rank_sends_nothing() -> None:
    assert planned_and_measured({"traffic": []}, {})[0][2] == 0


@given(st.fixed_dictionaries({"peak_bytes": ANYTHING, "time": ANYTHING, "traffic": ANYTHING}), ANYTHING)
def test_no_plan_raises(plan: dict[str, object], value: object) -> None:
    figures = {name: value for _, name in FIGURES}
    for _, _, planned, measured in planned_and_measured(plan, figures):
        assert isinstance(planned, float | int) and (measured is None or isinstance(measured, float | int))
