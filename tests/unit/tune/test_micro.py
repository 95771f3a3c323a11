"""The largest micro-batch size that fits, and which of those that fit is taken."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from dtk.plan.solve import largest
from dtk.tune import micro
from dtk.tune.probe import Probe, Trials
from tests.unit.tune.probes import OOM, probe, sizes


def test_the_fastest_micro_batch_or_a_smaller_one_that_is_as_fast() -> None:
    clear = sizes(
        m1=[probe(100.0), probe(101.0), probe(99.0)],
        m4=[probe(300.0), probe(301.0), probe(299.0)],
        m8=[probe(200.0), probe(201.0), probe(199.0)],
        m16=[OOM],
    )
    rows, fastest = micro.rows(clear)
    taken = micro.choose(rows, fastest)
    assert taken == fastest == micro.candidate(4)
    text = micro.verdict(rows, taken, fastest, 32, up=False)
    assert text == "use train.micro_batch_size=4; train.micro_batch_size=8 is the largest that fits"
    assert [row.ended for row in rows] == ["finished"] * 3 + ["out of memory"]
    alike = sizes(
        m2=[probe(300.0), probe(290.0), probe(310.0)],
        m4=[probe(301.0), probe(311.0), probe(292.0)],
        m1=[probe(100.0), probe(101.0), probe(99.0)],
    )
    rows, fastest = micro.rows(alike)
    assert fastest == micro.candidate(4)
    taken = micro.choose(rows, fastest)
    assert taken == micro.candidate(2), "as fast as noise can tell, and leaves more memory"
    text = micro.verdict(rows, taken, fastest, 4, up=False)
    assert text.endswith(
        "the largest valid one, and it fits, train.micro_batch_size=4 has no gain distinguishable from noise"
    )


def test_nothing_fits() -> None:
    rows, fastest = micro.rows(sizes(m1=[OOM]))
    assert micro.choose(rows, fastest) is None
    assert micro.verdict(rows, None, fastest, 8, up=False) == "not even the smallest micro-batch fits"


def searched(
    fits_up_to: int, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> tuple[Trials, int | None, list[int]]:
    """Search over `sizes` on a machine where micro-batches above a size run out of memory."""
    requests: list[int] = []

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        requests.append(int(overrides[-1].partition("=")[2]))
        return probe(100.0) if requests[-1] <= fits_up_to else OOM

    monkeypatch.setattr("dtk.tune.probe.probe", run)
    trials = Trials([], None, Path(), lambda text: None, float("inf"))
    return trials, micro.find_largest(trials, sizes), requests


@pytest.mark.parametrize(("limit", "largest"), [(0, None), (1, 1), (3, 2), (8, 8), (11, 8), (100, 16)])
def test_the_largest_that_fits_is_found_with_few_probes(
    monkeypatch: pytest.MonkeyPatch, limit: int, largest: int | None
) -> None:
    result, value, requests = searched(limit, monkeypatch, [1, 2, 4, 8, 16])
    assert value == largest and len(requests) == len(set(requests)) <= 5
    assert micro.fitting(result) == sorted(size for size in requests if size <= limit)


def test_a_failure_that_is_not_memory_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtk.tune.probe.probe", lambda *_: probe(state="hung", reason="rank 1 waits"))
    trials = Trials([], None, Path(), lambda text: None, float("inf"))
    with pytest.raises(micro.ProbeFailedError, match=r"train\.micro_batch_size=1 hung: rank 1 waits"):
        micro.find_largest(trials, [1, 2])


def test_what_was_found_when_the_time_was_up_is_said_to_be_that() -> None:
    rows, fastest = micro.rows(sizes(m1=[probe(100.0)], m2=[probe(200.0)]))
    assert fastest == micro.candidate(2)
    text = micro.verdict(rows, fastest, fastest, 16, up=True)
    assert text == "use train.micro_batch_size=2; train.micro_batch_size=2 is the largest found before the time was up"
    assert micro.verdict([], None, None, 16, up=True) == "nothing was tried"


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 720), st.integers(0, 800))
def test_it_finds_the_largest_that_fits(share: int, most: int) -> None:
    sizes, requests = divisors(share), list[int]()

    def fits(size: int) -> bool:
        requests.append(size)
        return size <= most

    assert largest(sizes, fits) == max((size for size in sizes if size <= most), default=None)
    assert len(requests) == len(set(requests)), "each size once"
    assert sum(size > most for size in requests) <= 1 + len(sizes).bit_length()
    doubled = [size for size in requests if size <= most]
    if doubled:
        beyond = [size for size in requests if size > most]
        following = [size for size in sizes if size > max(doubled)]
        assert all(size <= max(2 * max(doubled), following[0]) for size in beyond)


def test_powers_of_two_are_doubled_and_then_bisected() -> None:
    sizes: list[int] = []
    assert largest(divisors(48), lambda size: sizes.append(size) or size <= 7) == 6  # type: ignore[func-returns-value]
    assert sizes == [1, 2, 4, 8, 6]
    sizes.clear()
    assert largest(divisors(48), lambda size: sizes.append(size) or True) == 48  # type: ignore[func-returns-value]
    assert sizes == [1, 2, 4, 8, 16, 24, 48]


def test_a_search_in_which_nothing_fits_asks_once() -> None:
    sizes: list[int] = []
    assert largest([1, 2, 4], lambda size: bool(sizes.append(size))) is None  # type: ignore[func-returns-value]
    assert sizes == [1], "what does not fit at its smallest is not tried larger"


def test_primes_lie_far_apart() -> None:
    assert largest([1, 97], lambda size: True) == 97


@pytest.mark.parametrize("sizes", [[1], [5]])
def test_one_size(sizes: list[int]) -> None:
    assert largest(sizes, lambda size: True) == sizes[0]
