"""Measures are read for drawing: what is absent or of another shape is left out and never an error."""

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.memory.over_time import MemoryStack, Peak
from diagnostics.report import measures
from diagnostics.report.drawings import _time
from diagnostics.report.measures import RANKS_DRAWN, RankMemory, memory_notes

NAMES = st.sampled_from(["ranks", "peak", "0", "window"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["ranks", "x", "1", math.nan, math.inf]),
    lambda child: st.lists(child, max_size=2) | st.dictionaries(NAMES, child, max_size=2),
    max_leaves=5,
)  # fmt: skip
STACK = {
    "kinds": ["a", "b"],
    "rows": [[0.0, 1.0, 2.0], [1.0, 3.0, 1.0]],
    "peak": {"time": 1.0, "bytes": 3.0, "kinds": {"a": 3.0}},
}


def of_memory(**ranks: Any) -> dict[str, Any]:
    return {"memory": {"ranks": {name.removeprefix("r"): value for name, value in ranks.items()}}}


@given(st.dictionaries(st.sampled_from(["hang", "memory", "overlap"]), JSON, max_size=3))
@settings(max_examples=60)
def test_measures_of_any_shape_are_survived(value: dict[str, Any]) -> None:
    assert measures.timeline(value) is None or value["hang"]
    assert isinstance(measures.memory(value), dict) and isinstance(measures.overlap(value), dict)
    assert isinstance(measures.plan_lines(value), list) and isinstance(measures.overlap_window(value), str)
    assert isinstance(measures.drawn_as(value), dict) and isinstance(measures.lost_shares(value), dict)
    assert measures.step_timeline(value) is None or value["overlap"]


def test_the_peak_is_measured_or_that_of_the_curve_or_of_the_categories() -> None:
    rank_memories = measures.memory(of_memory(r0={"peak_bytes": 9.0, "curve": [[0, 5]]}, r1={"curve": [[0, 5], [1, 7]]},
                                      r2={"categories": {"a": 2, "b": 4}}, r3={"curve": []}))  # fmt: skip
    assert {rank: rank_memory.peak_bytes for rank, rank_memory in rank_memories.items()} == {0: 9.0, 1: 7.0, 2: 6.0}


def test_a_rank_that_is_damaged_does_not_cost_the_others() -> None:
    assert list(
        measures.memory(of_memory(r0={"peak_bytes": "much"}, r1={"peak_bytes": 1e30}, r2={"peak_bytes": 5}))
    ) == [2]
    assert measures.memory({"memory": {"ranks": {"zero": {"peak_bytes": 5}}}}) == {}


def test_of_many_ranks_those_to_blame_are_drawn() -> None:
    ranks = {str(rank): {"compute_ms": 1.0} for rank in range(200)}
    rank_times = measures.overlap({"overlap": {"ranks": ranks}}, culprits=[199, 3, 500])
    assert len(rank_times) == RANKS_DRAWN and list(rank_times) == sorted(rank_times)
    assert {199, 3, 0} <= set(rank_times) and 500 not in rank_times


def test_a_rank_without_a_figure_has_no_bar() -> None:
    assert list(measures.overlap({"overlap": {"ranks": {"0": {}, "1": {"idle_ms": 2.0}}}})) == [1]


def test_copies_have_a_column_where_there_are_any() -> None:
    plain = measures.overlap({"overlap": {"ranks": {"0": {"compute_ms": 1.0}}}})
    copied = measures.overlap({"overlap": {"ranks": {"0": {"memory_ms": 1.5}}}})
    assert "copies ms" not in measures.overlap_rows(plain)[0] and "overlap %" in measures.overlap_rows(plain)[0]
    heading, row = measures.overlap_rows(copied)
    assert row[heading.index("copies ms")] == "1.50" and row[heading.index("compute ms")] == "-"


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (
            {"window": "whole file", "steps": 6, "step_ms": 76.93, "steps_marked": True},
            "whole file, 6 steps of 76.9 ms",
        ),
        ({"window": "whole file", "steps": 6, "step_ms": 76.93}, "whole file"),
        ({"window": "step 3", "steps": 1, "step_ms": 8.0, "steps_marked": True}, "step 3, 1 step of 8.0 ms"),
        ({"steps": 3}, ""),
    ],
)
def test_what_the_figures_are_of(window: dict[str, Any], text: str) -> None:
    assert measures.overlap_window({"overlap": window}) == text


def test_a_stack_whose_rows_do_not_fit_its_kinds_is_left_out() -> None:
    rank_memories = measures.memory(
        of_memory(r0={"over_time": STACK}, r1={"over_time": {**STACK, "rows": [[0.0, 1.0], [1.0, 2.0]]}})
    )
    assert (
        list(rank_memories) == []
        and measures.memory(of_memory(r0={"over_time": STACK, "peak_bytes": 3.0}))[0].over_time
    )
    assert measures.memory(of_memory(r0={"peak_bytes": 3.0, "over_time": {**STACK, "kinds": []}})) == {}


def test_a_stack_tells_what_is_in_tensors_and_notes_what_is_computed() -> None:
    stack = MemoryStack(["a", "b"], [[0.0, 1.0, 2.0], [1.0, 3.0, 1.0]], Peak(1.0, 3.0, {"a": 3.0}), computed=["a", "b"],
                        peak_elsewhere_bytes=2048.0, unit="event")  # fmt: skip
    assert stack.unused == {"b"} and stack.in_tensors([0.0, 1.0, 2.0]) == 1.0
    assert memory_notes(stack) == [
        "a and b are computed from the size of the model, not measured",
        "the highest peak of the whole run, 2 KiB, is outside the plotted range",
    ]
    assert _time(stack, 1200.0) == "event 1,200"
    assert _time(MemoryStack(["a"], [[0.0, 1.0]] * 2, Peak(0.0, 1.0)), 0.0183) == "18.3 ms"


def test_the_rows_of_a_table_name_the_largest_categories_first() -> None:
    rank_memory = RankMemory(peak_bytes=4096.0, categories={"small": 1024.0, "large": 3072.0, "none": 0.0})
    assert measures.memory_rows({3: rank_memory})[1] == ("3", "4 KiB", "-", "large 3 KiB (75%), small 1 KiB (25%)")


@pytest.mark.parametrize(("part", "whole", "text"), [(1, 4, " (25%)"), (9, 4, " (100%)"), (1, 0, ""), (0, 5, " (0%)")])
def test_a_share_is_at_most_the_whole(part: float, whole: float, text: str) -> None:
    assert measures.share_text(part, whole) == text


def test_a_timeline_without_a_call_is_none() -> None:
    assert measures.timeline({"hang": {"timeline": {"ranks": {"0": []}}}}) is None
    timeline = measures.timeline(
        {"hang": {"timeline": {"group": "g", "ranks": {"1": [{"position": 4, "op": "barrier"}]}}}}
    )
    assert timeline is not None and timeline.ranks[1][0].op == "barrier" and timeline.group == "g"


def test_why_the_plan_cannot_be_compared_is_told_in_full_reports() -> None:
    plan = {"memory": {"plan": {"planned_bytes": 3 << 30, "missing": "tensors", "other": 3}}}
    (line,) = measures.plan_lines(plan)
    assert line.startswith("planned 3 GiB; the actual peak is unknown") and "(record=full)" in line
    assert measures.plan_lines(plan, everything=False) == []


def test_the_parts_of_the_peak_that_differ_from_the_plan_are_named() -> None:
    gib = 1 << 30
    plan = {
        "planned_bytes": 9 * gib, "planned": {"activations": 6 * gib, "gathered parameters": gib},
        "was_bytes": 15 * gib, "was": {"activations": 10 * gib, "gathered parameters": 3 * gib, "logits": 2 * gib},
        "rank": 1, "ranks": 4, "differs": ["activations", "gathered parameters", "logits"],
        "with_copies_bytes": 16 * gib, "gathered_blocks": 3,
    }  # fmt: skip
    (line,) = measures.plan_lines({"memory": {"plan": plan}})
    assert line == (
        "planned 9 GiB, actual 15 GiB on rank 1 without gloo's own copies (16 GiB with them): activations 10 GiB "
        "instead of 6 GiB, gathered parameters of 3 blocks alive at once (3 GiB), logits 2 GiB instead of none"
    )
    assert measures.plan_lines({"memory": {"plan": {**plan, "planned_bytes": "9"}}}) == []
