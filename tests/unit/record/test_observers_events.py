"""Lines of spans."""

from dtk.parallel.regions import communication, observe, region
from dtk.record.observers import Spans


class Lines:
    """Takes what is appended."""

    def __init__(self):
        self.records = []

    def append(self, *records):
        self.records += records


def spans_of(*steps):
    """The spans of steps, each a function that opens regions."""
    lines = Lines()
    spans = Spans(lines)
    observe([spans])
    for number, step in enumerate(steps, 1):
        spans.begin_step(number)
        step()
    spans.begin_step(None)
    return lines.records


def test_spans_of_a_step_are_handed_over_when_the_next_begins():
    def step():
        with region("forward"), communication("all_reduce", 16, "dp"):
            pass

    inner, outer, *rest = spans_of(step, step)
    assert (inner["name"], inner["op"], inner["size_bytes"], inner["group"]) == (
        "all_reduce 16 B dp",
        "all_reduce",
        16,
        "dp",
    )
    assert (outer["name"], outer["kind"]) == ("forward", "span")
    assert "op" not in outer
    assert [record["step"] for record in (inner, outer, *rest)] == [1, 1, 2, 2]
    assert outer["time_s"] <= inner["time_s"]
    assert outer["duration_ms"] >= inner["duration_ms"] >= 0


def test_nothing_is_written_of_a_step_without_regions():
    assert spans_of(lambda: None) == []


def test_a_region_that_was_open_before_has_no_span():
    lines = Lines()
    spans = Spans(lines)
    with region("early"):
        observe([spans])
    spans.begin_step(None)
    assert lines.records == []
