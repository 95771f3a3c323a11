"""Ranks in processes of their own: one after another, at the same time, and what becomes of those that die."""

import os
import signal
import time
from array import array

import pytest

from diagnostics.contract.findings import Group
from dtk.errors import DtkError
from dtk.preflight.calls import End, Program, Record
from dtk.preflight.exchange import Exchange, Offer
from dtk.preflight.pool import Body, Collected, simulate
from tests.unit.preflight.programs import entry

PAIR = (0, 1)


def offer(exchange: Exchange, value: bytes, key: str = "key") -> None:
    exchange.offer(Offer((key,), exchange.rank, PAIR, (), "root", "", exchange.rank, 1, ("uint8",), (value,)))


def record(rank: int, text: str = "") -> Record:
    program = Program((entry(0, "barrier"),), array("i", [0, -1]).tobytes())
    return Record(rank, program, (Group("0", PAIR),), End(), errors=text)


def run(body: Body, ranks: tuple[int, ...] = PAIR, *, live: bool = False, limit_s: float = 20.0) -> Collected:
    collected = Collected()
    simulate(ranks, body, collected, 2, limit_s, live=live)
    return collected


def test_equal_programs_are_kept_once() -> None:
    collected = run(lambda exchange: record(exchange.rank), (0, 1, 2))
    assert sorted(collected.records) == [0, 1, 2]
    assert len({id(item.program) for item in collected.records.values()}) == 1


def test_a_rank_that_needs_a_later_one_runs_again_after_it() -> None:
    def body(exchange: Exchange) -> Record:
        if exchange.rank == 1:
            offer(exchange, b"7")
            return record(1)
        values = exchange.ask(("key",), (1,))
        return record(0, "none" if values is None else values[0].decode())

    assert run(body).records[0].errors == "7"


def test_ranks_that_need_each_other_end_with_made_up_values() -> None:
    def body(exchange: Exchange) -> Record:
        values = exchange.ask((f"of {1 - exchange.rank}",), (1 - exchange.rank,))
        return record(exchange.rank, "none" if values is None else "known")

    assert [item.errors for item in run(body).records.values()] == ["none", "none"]


def test_live_ranks_exchange_values_while_they_run() -> None:
    def body(exchange: Exchange) -> Record:
        offer(exchange, str(exchange.rank).encode(), f"from {exchange.rank}")
        values = exchange.ask((f"from {1 - exchange.rank}",), (1 - exchange.rank,))
        return record(exchange.rank, "" if values is None else values[0].decode())

    collected = run(body, live=True)
    assert {rank: value.errors for rank, value in collected.records.items()} == {0: "1", 1: "0"}


def test_live_ranks_that_all_wait_are_set_adrift() -> None:
    def body(exchange: Exchange) -> Record:
        values = exchange.ask(("never",), (1 - exchange.rank,))
        return record(exchange.rank, f"{values} {exchange.adrift}")

    assert {item.errors for item in run(body, live=True).records.values()} == {"None True"}


def test_a_process_that_dies_is_a_killed_rank() -> None:
    def body(exchange: Exchange) -> Record:
        if exchange.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return record(exchange.rank)

    assert run(body).records[1].end == End("killed", signal="SIGKILL")


def test_a_process_that_takes_far_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtk.preflight import pool

    monkeypatch.setattr(pool, "GRACE_S", 0.2)

    def body(exchange: Exchange) -> Record:
        time.sleep(60 if exchange.rank else 0)
        return record(exchange.rank)

    assert run(body, limit_s=0.2).records[1].end.signal == "SIGKILL"


@pytest.mark.parametrize("live", [False, True])
def test_what_makes_the_whole_job_impossible_ends_it(live: bool) -> None:
    def body(exchange: Exchange) -> Record:
        raise DtkError("no process group", "none was made", "make one")

    with pytest.raises(DtkError, match="no process group"):
        run(body, live=live)
