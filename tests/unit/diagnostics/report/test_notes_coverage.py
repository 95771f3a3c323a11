"""What evidence there was, of which ranks: absent ranks are named, harmless problems are notes."""

from pathlib import Path
from typing import Any

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Problem, RankError
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.report.model import Coverage
from diagnostics.report.notes import PROBLEMS, coverage


def evidence(**more: Any) -> Evidence:
    return Evidence(root=Path("job"), limits=Limits(), **more)


def traced(*ranks: int, **more: Any) -> Evidence:
    result = evidence(**more)
    result.files["trace"] = [TraceFile(Path(f"{rank}.json"), f"{rank}.json", rank, result.limits) for rank in ranks]
    return result


def line(lines: tuple[Coverage, ...], kind: str) -> Coverage:
    (result,) = (item for item in lines if item.kind == kind)
    return result


def test_of_nothing_there_is_no_line() -> None:
    assert coverage(evidence(), 0) == ()


def test_ranks_without_a_trace_are_named_first() -> None:
    problem = Problem("trace", "3.json", "damaged")
    result = line(coverage(traced(0, 2, problems=[problem]), 4), "trace")
    assert (result.ranks_present, result.ranks_expected) == (2, 4)
    assert result.absent == result.problems[0] and result.absent.startswith("ranks 1, 3: no ")
    assert result.problems[1] == "3.json: damaged"


def test_a_file_that_was_not_read_counts_for_no_rank() -> None:
    unread = Problem("trace", "1.json", "larger than the limit", unread=True)
    result = line(coverage(traced(0, 1, problems=[unread]), 2), "trace")
    assert result.ranks_present == 1 and result.absent.startswith("rank 1: ")


def test_more_ranks_than_expected_are_no_problem() -> None:
    result = line(coverage(traced(0, 1, 2), 2), "trace")
    assert (result.ranks_present, result.ranks_expected, result.problems) == (3, 3, ())


def test_what_is_harmless_is_a_note() -> None:
    notes = [
        Problem("flight", "", "older format", harmless=True),
        Problem("flight", "b", "x"),
        Problem("flight", "a", "y"),
    ]
    result = line(coverage(evidence(problems=notes), 0), "flight")
    assert (result.problems, result.notes) == (("a: y", "b: x"), ("older format",))


def test_errors_need_not_be_of_every_rank() -> None:
    result = line(coverage(evidence(errors=[RankError(1, "logs/1", 3, "ValueError", "bad")]), 4), "error")
    assert (result.ranks_present, result.ranks_expected, result.absent) == (1, 1, "")


def test_many_problems_are_counted() -> None:
    problems = [Problem("log", f"{n:04}", "damaged") for n in range(PROBLEMS + 5)]
    result = line(coverage(evidence(problems=problems), 0), "log")
    assert len(result.problems) == PROBLEMS + 1 and result.problems[-1] == "and 5 more"
