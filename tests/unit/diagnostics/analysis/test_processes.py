"""Work over processes: the same results whatever becomes of them."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from diagnostics.analysis.processes import spread

HERE = os.getpid()  # Passed on: a process that imports this file anew would find its own.


def square(here: int, number: int) -> tuple[int, bool]:
    return number * number, os.getpid() == here


def ends_its_process(here: int, number: int) -> int:
    if number == 9 and os.getpid() != here:
        os._exit(1)
    return number


def refuses(number: int) -> int:
    if number == 3:
        raise ValueError("no 3")
    return number


def results(result: Iterator[tuple[int, bool]]) -> tuple[list[int], set[bool]]:
    numbers, places = zip(*result, strict=True)
    return [*numbers], {*places}


def test_the_order_is_that_of_the_items_and_no_work_is_done_here() -> None:
    assert results(spread(partial(square, HERE), range(40), 2)) == ([n * n for n in range(40)], {False})
    assert results(spread(partial(square, HERE), range(3), 1)) == ([0, 1, 4], {True})
    assert [*spread(partial(square, HERE), [], 8)] == []


def test_a_process_that_ends_loses_and_repeats_nothing() -> None:
    assert [*spread(partial(ends_its_process, HERE), range(40), 2)] == [*range(40)]


def test_without_processes_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("no processes")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refused)
    assert results(spread(partial(square, HERE), range(3), 2)) == ([0, 1, 4], {True})


def test_what_the_work_itself_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="no 3"):
        [*spread(refuses, range(8), 2)]
