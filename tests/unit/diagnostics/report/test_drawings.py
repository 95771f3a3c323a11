"""What detectors measured, drawn: who differs is marked, colours are the same everywhere, steps do not crowd."""

from typing import Any

import pytest

from diagnostics.analysis.memory.over_time import PROCESS
from diagnostics.report import document as doc, drawings
from diagnostics.report.model import Report
from diagnostics.report.overview import cards
from tests.unit.diagnostics.report.samples import finding, full, report, stacked


def timeline(
    states: dict[int, list[tuple[str, str]]], position: int | None = None, ranks: tuple[int, ...] = ()
) -> doc.Table:
    """Return the drawn table of calls (op, state) at positions from 0."""
    cells = {
        str(rank): [
            {"position": n, "op": op, "state": state, "where": f"a/t.py:{n} in f"}
            for n, (op, state) in enumerate(calls)
        ]
        for rank, calls in states.items()
    }
    root = finding("hang.collective_mismatch", ranks=ranks, position=position)
    drawn = drawings.timeline(report(root, measures={"hang": {"timeline": {"ranks": cells}}}))
    assert drawn is not None
    (section,) = drawn.blocks
    assert isinstance(section, doc.Section)
    (table,) = (block for block in section.blocks if isinstance(block, doc.Table))
    return table


def tones(table: doc.Table) -> list[list[str]]:
    return [[doc.cell_of(cell).tone for cell in row[1:]] for row in table.rows]


def test_what_is_not_what_most_ranks_issued_is_marked() -> None:
    done, waits = ("all_reduce", "completed"), ("all_reduce", "scheduled")
    table = timeline({0: [done, waits], 1: [done, ("broadcast", "scheduled")], 2: [done, waits]}, 1, (1,))
    assert tones(table) == [["good", "warn"], ["good", "bad"]]
    assert [doc.plain(doc.cell_of(row[0]).text) for row in table.rows] == ["0, 2", "1 *"] and table.focus == 2


def test_ranks_with_the_same_calls_share_a_row() -> None:
    """Of a thousand ranks that wait for one there are two rows, not a thousand."""
    done = ("all_reduce", "completed")
    waits = {rank: [done, ("all_reduce", "scheduled")] for rank in range(60)}
    table = timeline({**waits, 7: [done]}, 1, (7,))
    assert [doc.plain(doc.cell_of(row[0]).text) for row in table.rows] == ["0-6, 8-59", "7 *"]


def test_without_a_majority_everybody_differs() -> None:
    table = timeline({0: [("all_reduce", "issued")], 1: [("broadcast", "issued")]})
    assert tones(table) == [["bad"], ["bad"]] and table.focus is None


def test_what_was_not_issued_is_shown_as_such() -> None:
    table = timeline({0: [("barrier", "retired")] * 2, 1: [("barrier", "issued")], 2: [("barrier", "x")] * 2})
    assert tones(table) == [["good", "good"], ["", "soft"], ["warn", "warn"]]
    assert doc.cell_of(table.rows[1][2]).hint == "not issued, or not recorded"


def test_where_the_ranks_part_the_line_counts_too() -> None:
    """Equal calls may match by chance: there the place is compared and shown."""
    calls = {
        str(rank): [{"position": 0, "op": "barrier", "where": f"/x/t.py:{line} in f", "place": f"t.py:{line}"}]
        for rank, line in ((0, 1), (1, 1), (2, 9))
    }
    root = finding("hang.conditional_collective", ranks=(2,), position=0)
    drawn = drawings.timeline(report(root, measures={"hang": {"timeline": {"ranks": calls}}}))
    assert drawn is not None and isinstance(drawn.blocks[0], doc.Section)
    table = drawn.blocks[0].blocks[1]
    assert isinstance(table, doc.Table) and tones(table) == [["warn"], ["bad"]]
    assert doc.cell_of(table.rows[1][1]).below == ("t.py:9",)


@pytest.mark.parametrize("draw", [drawings.timeline, drawings.overlap, drawings.memory])
def test_without_measures_nothing_is_drawn(draw: Any) -> None:
    assert draw(report()) is None
    assert draw(report(measures={"hang": 3, "overlap": [], "memory": {"ranks": None}})) is None


def test_a_bar_adds_up_to_the_wall_time() -> None:
    ranks = {"0": {"compute_ms": 100.0, "overlapped_ms": 30.0, "exposed_ms": 20.0, "idle_ms": 10.0, "wall_ms": 150.0},
             "1": {"compute_ms": 10.0}}  # fmt: skip
    section = drawings.overlap(report(finding("overlap.skew", ranks=(1,)), measures={"overlap": {"ranks": ranks}}))
    assert section is not None
    (bars,) = (block for block in section.blocks if isinstance(block, doc.Bars))
    assert bars.bars[0].values == (70.0, 30.0, 20.0, 30.0) and sum(bars.bars[0].values) == 150.0
    assert [bar.name for bar in bars.bars] == ["rank 0", "rank 1*"] and bars.bars[1].end == "10.0 ms"


def tracks(section: doc.Section) -> list[doc.Tracks]:
    inner = [block for only in section.blocks if isinstance(only, doc.Only) for block in only.blocks]
    blocks = [block for part in inner if isinstance(part, doc.Section) for block in part.blocks]
    return [block for block in blocks if isinstance(block, doc.Tracks)]


def test_the_timeline_of_a_step_splits_a_collective_into_waiting_and_transfer() -> None:
    track = {
        "length_ms": 10,
        "regions": [["forward", 0, 4, 0]],
        "calls": [["all_reduce", 5, 9, 3]],
        "idle": [["data", 0, 1, 0]],
    }
    timeline = {"step": 7, "ranks": {"0": track, "1": {**track, "length_ms": 18.3}}}
    ranks = {"0": {"compute_ms": 1.0}, "1": {"compute_ms": 1.0}}
    drawn = drawings.overlap(report(measures={"overlap": {"ranks": ranks, "timeline": timeline}}))
    assert drawn is not None
    (chart,) = tracks(drawn)
    (name, stretches, end), _ = chart.rows
    assert (chart.label, chart.width, name, end) == ("Timeline of step 7", 18.3, "rank 0", "10.0 ms")
    assert [(part.start, part.end, part.thin) for part in stretches] == [
        (0, 4, True), (5, 8, False), (8, 9, False), (0, 1, False),
    ]  # fmt: skip
    assert stretches[1].hint == "all_reduce: 4.00 ms, 3.00 ms of it waiting for late ranks"


def test_a_thousand_ranks_are_a_heat_map_without_gaps_for_ranks_that_nobody_has() -> None:
    ranks = {str(n): {"wall_ms": 100.0, "exposed_ms": 10.0 + 40 * (n == 700), "idle_ms": 0.0} for n in range(1000)}
    ranks["9" * 300] = ranks["0"]
    drawn = drawings.overlap(report(measures={"overlap": {"ranks": ranks}}))
    assert drawn is not None
    (chart,) = tracks(drawn)
    assert len(chart.rows) == 33 and [row[0] for row in chart.rows[:2]] == ["0", "32"]
    cells = {cell.hint.partition(":")[0]: cell for _, row, _ in chart.rows for cell in row}
    assert (cells["rank 700"].colour, cells["rank 3"].colour, chart.rows[21][2]) == ("h5", "h0", "50%")
    bars = [bar.name for block in drawn.blocks if isinstance(block, doc.Bars) for bar in block.bars]
    assert "rank 700" in bars and len(bars) < 100, "the bars are those of the ranks that lose the most time"


def test_everybody_to_blame_is_nobody_to_mark() -> None:
    ranks = {str(rank): {"compute_ms": 1.0} for rank in range(4)}
    section = drawings.overlap(
        report(finding("overlap.skew", ranks=(0, 1, 2, 3)), measures={"overlap": {"ranks": ranks}})
    )
    assert section is not None and not any(
        "*" in bar.name for block in section.blocks if isinstance(block, doc.Bars) for bar in block.bars
    )


def plots(report: Report) -> list[doc.Plot]:
    """Return the areas of memory over time."""
    section = drawings.memory(report)
    assert section is not None
    result: list[doc.Plot] = []
    todo: list[doc.Block] = [section]
    while todo:
        block = todo.pop(0)
        result += [block] if isinstance(block, doc.Plot) else []
        todo += getattr(block, "blocks", ())
    return result


def test_what_a_whole_process_holds_is_not_compared_with_tensors() -> None:
    """A rank that left no trace has its resident set only."""
    result = stacked()
    first = next(iter(result["memory"]["ranks"].values()))
    whole = {"peak_bytes": 1 << 40, "curve": [[0, 1], [1, 1 << 40]]}
    whole["over_time"] = {**first["over_time"], "of": PROCESS}
    result["memory"]["ranks"]["9"] = whole
    (compared,) = [plot for plot in plots(report(measures=result)) if plot.label == "Memory over time"]
    assert all(not curve.name.startswith("rank 9") for curve in compared.curves)
    head = cards(report(measures=result))
    assert head is not None and "rank 9" not in doc.plain(head.cards[-1].lines[0])


def test_memory_over_time_marks_steps_peak_capacity_and_what_failed() -> None:
    (*_, last) = [plot for plot in plots(report(measures=stacked())) if plot.label.startswith("Memory of rank 2")]
    texts = [mark.text for mark in last.marks]
    assert "step 6" in texts and "step 7" in texts and "step 8" not in texts, "step 8 is too close to step 7"
    assert any(text.startswith("peak ") for text in texts) and "a request of 3 GiB failed" in texts
    assert "the device has 8 GiB" in texts and last.y.high >= 8 * 2**30
    assert "Peak of tensors" in last.label and "The device has 8 GiB." in last.label


def test_a_capacity_far_above_the_curves_is_only_written() -> None:
    measures = stacked(ranks=1)
    measures["memory"]["ranks"]["0"]["over_time"]["capacity_bytes"] = 80 * 2**30
    (plot,) = plots(report(measures=measures))
    assert not any("the device has" in mark.text for mark in plot.marks) and "The device has 80 GiB." in plot.label
    assert plot.y.high < 10 * 2**30


def test_a_kind_of_memory_has_one_colour_wherever_it_is_drawn() -> None:
    first = next(plot for plot in plots(report(measures=stacked())) if plot.label.startswith("Memory of rank"))
    colours = {curve.name.partition(":")[0]: curve.colour for curve in first.curves if curve.lower}
    assert colours["parameters"] == 0 and colours["activations"] == 4 and colours["not attributed"] == 3


def test_many_ranks_are_drawn_in_one_colour_and_those_to_blame_on_top() -> None:
    ranks = {str(rank): {"peak_bytes": 5.0, "curve": [[0, 1], [1, 5]]} for rank in range(20)}
    result = report(finding("memory.leak", ranks=(3,)), measures={"memory": {"ranks": ranks}}, world_size=20)
    (plot,) = plots(result)
    assert plot.curves[-1].strong and plot.curves[-1].name.startswith("rank 3*")
    assert not plot.legend and len({curve.colour for curve in plot.curves}) == 1


def test_a_full_report_draws_all_three() -> None:
    assert drawings.timeline(full()) and drawings.overlap(full()) and drawings.memory(full())
