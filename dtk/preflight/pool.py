"""Simulates ranks in forked processes, a few at a time, and collects their records.

Ranks run in sequence, so that memory does not grow with their number, or concurrently (`live`), so that they exchange
real values; once no live rank can continue, each finishes with placeholder values, so that its later calls are known.
Call it before this process runs backward or more than one torch thread, as neither survives a fork.
"""

import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, repeat
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from diagnostics.contract.findings import Group
from dtk.errors import DtkError
from dtk.preflight.calls import End, Program, Record
from dtk.preflight.exchange import ASK, END, Exchange, Key, Offer, Values, from_bytes, part, part_of, to_bytes

Body = Callable[[Exchange], Record]
"""Simulates one rank in a separate process; raises DtkError if the job cannot be simulated at all."""
MOST_LIVE_RANKS = 64  # Maximum number of concurrently simulated ranks: each holds memory until all have ended.
RETRIES = 3  # Maximum number of times that a rank is simulated again because it needed a value of a later rank.
GRACE_S = 10.0  # A process that is still running this long after its own limit is killed.
_leave = os._exit  # The real function, which a simulated rank cannot call.
_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum},
    **{"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor},
}


@dataclass(slots=True)
class _Call:
    offers: dict[int, Offer] = field(default_factory=dict)
    broken: bool = False
    """Whether two members issued different calls, so that there is no result."""
    reduced: Values | None = None
    taken: int = 0


class Results:
    """Offers whose results have not been taken yet."""

    def __init__(self) -> None:
        self._calls: dict[Key, _Call] = {}

    def put(self, offer: Offer) -> None:
        """Store a rank's offer."""
        call = self._calls.setdefault(offer.key, _Call())
        call.broken |= any(other.agreed != offer.agreed for other in call.offers.values())
        call.offers[offer.rank] = offer

    def complete(self, key: Key, needed: tuple[int, ...]) -> bool:
        """Return whether these ranks have made offers for the same call."""
        call = self._calls.get(key)
        return call is not None and not call.broken and all(rank in call.offers for rank in needed)

    def take(self, key: Key, rank: int) -> Values | None:
        """Return the result of a complete call for this rank, or None if a member brought no values."""
        call = self._calls[key]
        call.taken += 1
        offer = next(iter(call.offers.values()))
        if call.taken >= offer.takers:
            del self._calls[key]
        if offer.root >= 0:
            return part_of(call.offers[offer.root], rank)
        shares = [parts for giver in offer.members if (parts := call.offers[giver].parts) is not None]
        place, count = offer.members.index(rank), len(offer.members)
        if len(shares) < count:
            return None
        if offer.how == "all":
            return tuple(chain.from_iterable(shares))
        if offer.how == "mine":
            return tuple(value for share in shares for value in part(share, place, count))
        if call.reduced is None:
            brought = [[share[i] for share in shares if i < len(share)] for i in range(len(offer.dtypes))]
            call.reduced = tuple(map(_reduced, brought, offer.dtypes, repeat(offer.reduce_op)))
        return call.reduced if offer.how == "reduce" else part(call.reduced, place, count)


def _reduced(values: list[bytes], dtype_name: str, op: str) -> bytes:
    """Return the reduced part; empty for unequal lengths, and for an unsupported operation or dtype."""
    if op not in _REDUCE or not values[0] or len({len(value) for value in values}) > 1:
        return b""
    try:
        dtype: torch.dtype = getattr(torch, dtype_name)
        whole = reduce(_REDUCE[op], [from_bytes(value, dtype) for value in values])
    except (RuntimeError, TypeError):
        return b""
    return to_bytes((whole / len(values)).to(dtype) if op == "AVG" else whole)


@dataclass(slots=True)
class Collected:
    """Results of all simulated ranks."""

    records: dict[int, Record] = field(default_factory=dict)
    offers: dict[Key, Offer] = field(default_factory=dict)
    """Offers that ranks left for each other."""
    spread: frozenset[Key] = frozenset()
    """Collectives into which NaN or infinity was passed."""
    made_up: bool = False
    """Whether placeholder values were used for results that code may have read."""
    watches: bool = False
    """Whether to look for NaN and infinity."""
    programs: dict[Program, Program] = field(default_factory=dict)
    groups: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def add(self, record: Record, exchange: Exchange) -> None:
        """Store a rank's record; equal programs and rank lists are stored once."""
        program = self.programs.setdefault(record.program, record.program)
        groups = tuple(Group(group.name, self._shared(group.ranks), group.desc) for group in record.groups)
        new_groups = tuple((self._shared(ranks), desc) for ranks, desc in record.new_groups)
        self.records[record.rank] = replace(record, program=program, groups=groups, new_groups=new_groups)
        self.offers.update(exchange.given)
        self.spread |= exchange.spread
        self.made_up |= exchange.made_up

    def _shared(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return self.groups.setdefault(ranks, ranks)


@dataclass(slots=True)
class _Child:
    rank: int
    pid: int
    pipe: Connection
    deadline_s: float
    asks: tuple[Key, tuple[int, ...]] | None = None
    """The call that it waits for, and the ranks that it needs."""


def simulate(
    ranks: Iterable[int],
    body: Body,
    collected: Collected,
    processes: int,
    limit_s: float,
    progress: Callable[[int], None] | None = None,
    *,
    spoiled: frozenset[Key] = frozenset(),
    live: bool = False,
) -> None:
    """Simulate ranks in ascending order, as the lowest mostly decides for the others.

    Records are added to `collected`. The body enforces `limit_s`, and a process that exceeds it is killed; `spoiled` as
    in `Exchange`. With `live` all ranks, at most MOST_LIVE_RANKS, are simulated concurrently. Raises a body's DtkError.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Sums of live ranks are computed here, and torch's threads do not survive a fork.
    pool = _Pool(sorted(ranks), body, collected, limit_s, progress, spoiled, live, set(collected.records))
    try:
        with _forking(pool.children):
            pool.run(processes)
    finally:
        torch.set_num_threads(threads)


@dataclass(slots=True)
class _Pool:
    """The running ranks, the arguments of `simulate`, and its progress."""

    waiting: list[int]
    """Ranks to simulate, including those to simulate again."""
    body: Body
    collected: Collected
    limit_s: float
    progress: Callable[[int], None] | None
    spoiled: frozenset[Key]
    live: bool
    done: set[int]
    children: list[_Child] = field(default_factory=list)
    needs: dict[int, set[int]] = field(default_factory=dict)
    """Rank -> ranks that must be simulated before it."""
    tries: Counter[int] = field(default_factory=Counter)
    results: Results = field(default_factory=Results)
    adrift: bool = False
    """Whether no live rank could continue, so that placeholder values are used from now on."""

    def run(self, processes: int) -> None:
        """Run until every rank has ended."""
        alone = not self.live and not self.done
        while self.waiting or self.children:
            self._answer(processes)
            while self.waiting and len(self._running()) < (1 if alone and not self.done else processes):
                # The first rank whose needs are met, or any rank if they wait for each other and nothing runs.
                met = (rank for rank in self.waiting if self.needs.get(rank, set()) <= self.done)
                rank = next(met, None if self.children else self.waiting[0])
                if rank is None:
                    break
                self.waiting.remove(rank)
                self.children.append(self._start(rank))
            running = self._running()
            self.adrift = self.adrift or not running
            ready = wait([child.pipe for child in running], timeout=1.0) if running else ()
            for child in running:
                if child.pipe in ready:
                    self._take(child)
                elif time.monotonic() > child.deadline_s:
                    os.kill(child.pid, signal.SIGKILL)

    def _running(self) -> list[_Child]:
        return [child for child in self.children if child.asks is None]

    def _answer(self, processes: int) -> None:
        for child in sorted(self.children, key=lambda child: child.rank):
            if len(self._running()) >= processes:
                return
            if child.asks is None or not (self.adrift or self.results.complete(*child.asks)):
                continue
            answer = None if self.adrift else self.results.take(child.asks[0], child.rank)
            child.asks, child.deadline_s = None, time.monotonic() + self.limit_s + GRACE_S
            with suppress(OSError):  # It has exited, which is handled with its next message.
                child.pipe.send_bytes(pickle.dumps((self.adrift, answer)))

    def _take(self, child: _Child) -> None:
        try:
            message = child.pipe.recv_bytes()
        except (EOFError, OSError):
            message = b""
        kind, content = message[:1], message[1:]
        if kind == ASK:
            child.asks = pickle.loads(content)  # noqa: S301  From our own child.
        elif kind and kind != END:
            self.results.put(Offer(*pickle.loads(content)))  # noqa: S301
        else:
            child.pipe.close()
            self.children.remove(child)
            self._collect(child, content)

    def _collect(self, child: _Child, content: bytes) -> None:
        """Store a child's record; it has to run again if it needed values of later ranks."""
        status = os.waitpid(child.pid, 0)[1]
        rank, missed = child.rank, set()
        if not content:  # Its process ended early, which loses its earlier calls.
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            end = End("killed", signal=signal.Signals(number).name if number else "")
            self.collected.add(Record(rank, Program((), b""), (), end), Exchange(rank))
        else:
            value = pickle.loads(content)  # noqa: S301  From our own child.
            if not isinstance(value[0], Record):
                raise DtkError(*value)
            record, exchange, loaded = value
            if not self.collected.records:
                for name in loaded:  # Import the first rank's modules here once, so that later forks inherit them.
                    with suppress(Exception):
                        importlib.import_module(name)
            self.collected.add(record, exchange)
            missed = exchange.missed - {rank}
        if missed and self.tries[rank] < RETRIES:
            self.waiting.append(rank)
            self.needs[rank] = missed
            self.tries[rank] += 1
            return
        self.done.add(rank)
        if self.progress:
            self.progress(len(self.done))

    def _start(self, rank: int) -> _Child:
        exchange = Exchange(rank, spoiled=self.spoiled, watches=self.collected.watches)
        if not self.live:
            exchange.offers, exchange.done = self.collected.offers, frozenset(self.done)
        here, there = Pipe()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        pid = os.fork()
        if pid == 0:
            here.close()
            exchange.pipe = there if self.live else None
            code = 1
            try:
                there.send_bytes(END + pickle.dumps(self._outcome(exchange)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                _leave(code)
        there.close()
        return _Child(rank, pid, here, time.monotonic() + self.limit_s + GRACE_S)

    def _outcome(self, exchange: Exchange) -> tuple[Any, ...]:
        """Run the body in the child and return its result, or the problem that it raised."""
        before = set(sys.modules)
        try:
            record = self.body(exchange)
        except DtkError as error:
            return error.what, error.why, error.fix
        exchange.offers, exchange.pipe = {}, None  # The parent has them already.
        return record, exchange, [name for name in set(sys.modules) - before if name.partition(".")[0] == "torch"]


@contextmanager
def _forking(children: list[_Child]) -> Iterator[None]:
    """Prepare for forks: freeze objects so that their pages stay shared, and end `children` on exit."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # Input, output and errors are 0 to 2.
        pass  # A closed standard stream: a pipe would get its number, and the rank's output.
    os.close(number)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
