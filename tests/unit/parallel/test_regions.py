"""Regions: nested, told to every observer, and never stopped by one that fails."""

from collections.abc import Iterator

import pytest

from dtk.parallel import regions
from dtk.parallel.regions import Region, communication, current, failed_in, observe, observed, region


class Log:
    def __init__(self, lines: list[str], name: str = "") -> None:
        self.lines, self.name = lines, name

    def enter(self, region: Region) -> None:
        self.lines.append(f"{self.name}+{region.name}")

    def exit(self, region: Region) -> None:
        self.lines.append(f"{self.name}-{region.name}")


class Failing(Log):
    def exit(self, region: Region) -> None:
        raise RuntimeError("disk full")


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(regions, "_failed_in", None)
    yield
    observe([])


def test_without_observers_a_region_is_one_shared_null_context() -> None:
    assert not observed() and region("forward") is communication("all_reduce", 8, "dp")
    with region("forward"):
        assert current() is None


def test_regions_nest_and_observers_leave_in_reverse_order() -> None:
    lines: list[str] = []
    observe([Log(lines, "a"), Log(lines, "b")])
    with region("step"), region("forward", stage=1):
        inner = current()
        assert inner is not None and inner.parent is not None
        assert (inner.name, inner.place, inner.parent.name) == ("forward", {"stage": 1}, "step")
    assert lines == ["a+step", "b+step", "a+forward", "b+forward", "b-forward", "a-forward", "b-step", "a-step"]
    assert current() is None and observed()


def test_a_collective_says_operation_bytes_and_group() -> None:
    observe([Log([])])
    with communication("all_gather", 256, "dp_shard"):
        inside = current()
        assert inside is not None
        assert (inside.op, inside.size_bytes, inside.group) == ("all_gather", 256, "dp_shard")
        assert inside.name == "all_gather 256 B dp_shard"


def test_an_observer_that_fails_is_removed_and_reported_once() -> None:
    lines: list[str] = []
    reports: list[tuple[str, str]] = []
    observe([Failing(lines, "bad"), Log(lines)], lambda topic, problem: reports.append((topic, str(problem))))
    for _ in range(2):
        with region("forward"):
            pass
    assert reports == [("record: Failing", "disk full")]
    assert lines == ["bad+forward", "+forward", "-forward", "+forward", "-forward"]


def test_the_innermost_region_of_the_first_exception_is_kept() -> None:
    observe([Log([])])
    with pytest.raises(ValueError, match="no"), region("step"), region("backward"):
        raise ValueError("no")
    with pytest.raises(KeyError), region("evaluation"):
        raise KeyError
    assert failed_in() == "backward" and current() is None
