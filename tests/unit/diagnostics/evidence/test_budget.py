"""Time and memory that untrusted evidence may cost, whatever is made of it."""

import threading
from pathlib import Path

import pytest

from diagnostics.evidence.budget import OverBudgetError, budget, disk_bytes, failure
from diagnostics.evidence.limits import Limits

SHORT = Limits(seconds=0, memory_bytes=1 << 40)
SMALL = Limits(memory_bytes=0)


def spin() -> None:
    while True:
        pass


def grow() -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def test_a_loop_without_end_is_ended() -> None:
    with pytest.raises(OverBudgetError, match="more time or memory than"), budget(SHORT, 1):
        spin()


def test_memory_without_end_is_ended() -> None:
    with pytest.raises(OverBudgetError), budget(SMALL, 1 << 10):
        grow()


def test_a_budget_within_another_ends_and_the_outer_one_goes_on() -> None:
    with budget(Limits(), 1):
        for _ in range(2):
            with pytest.raises(OverBudgetError), budget(SHORT, 1):
                spin()
        assert sum(range(100_000))
    assert sum(range(100_000))


def test_evidence_made_in_memory_and_other_threads_have_none() -> None:
    with budget(SHORT, 0):
        assert sum(range(3_000_000))
    ended: list[int] = []

    def elsewhere() -> None:
        with budget(SHORT, 1):
            ended.append(sum(range(3)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ended == [3]


def test_a_hole_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert disk_bytes(path) <= 64 << 10
    path.write_bytes(bytes(range(256)) * 1024)
    assert disk_bytes(path) == 256 * 1024
    assert disk_bytes(tmp_path / "absent") == 0


def test_a_library_may_raise_it_again_with_its_own_text() -> None:
    assert str(OverBudgetError("full_key: a.b")) == str(OverBudgetError())


def test_a_failure_names_the_line_to_report() -> None:
    try:
        [][0]
    except IndexError as error:
        line = failure(error)
    assert line.startswith("IndexError: list index out of range at diagnostics/evidence/test_budget.py:")
    assert line.endswith("; please report this line") and "\n" not in line
    assert "report" not in failure(OverBudgetError()).replace("--limit-scale", "")
