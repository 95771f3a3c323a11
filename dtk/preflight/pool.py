"""Simulates ranks in forked processes, a few at a time, and collects what each of them recorded.

Each has its own process, as it may change its memory and modules or end itself. Ranks run one after another, so that
memory does not grow with them, or all at the same time (`live`), so that they exchange true values; once none of those
can continue, each runs to its end with placeholder values, so that its later calls are known too. Call it before this
process has run backward or more than one thread of torch, neither of which outlives a fork.
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
"""Simulates one rank in a process of its own; raises DtkError for what makes the whole job impossible to simulate."""
MOST_LIVE_RANKS = 64
"""Ranks simulated at the same time: each takes memory until all have ended."""
RETRIES = 3
"""How often a rank is simulated again because it needed a value of a rank that came after it."""
GRACE_S = 10.0
"""A process that has not ended this long after its own limit is killed."""
_leave = os._exit
"""Kept: a simulated rank cannot call it."""
_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum},
    **{"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor},
}


@dataclass(slots=True)
class _Call:
    """One call of all its members."""

    offers: dict[int, Offer] = field(default_factory=dict)
    broken: bool = False
    """Two members issued different calls: nothing comes of it."""
    reduced: Values | None = None
    taken: int = 0


class Results:
    """The offers that are not taken yet."""

    def __init__(self) -> None:
        self._calls: dict[Key, _Call] = {}

    def put(self, offer: Offer) -> None:
        """Keep what a rank brings."""
        call = self._calls.setdefault(offer.key, _Call())
        call.broken |= any(other.agreed != offer.agreed for other in call.offers.values())
        call.offers[offer.rank] = offer

    def complete(self, key: Key, needed: tuple[int, ...]) -> bool:
        """Whether these ranks have brought their shares of one and the same call."""
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
    """One part; nothing for lengths that differ, and for an operation that is not known here or not for this dtype."""
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
    """What is known of all simulated ranks."""

    records: dict[int, Record] = field(default_factory=dict)
    offers: dict[Key, Offer] = field(default_factory=dict)
    """What ranks left for each other."""
    spread: frozenset[Key] = frozenset()
    """Where values that are not numbers went into a collective."""
    made_up: bool = False
    """Whether values of calls were made up that code may have read."""
    watches: bool = False
    """Whether to look for values that are not numbers."""
    programs: dict[Program, Program] = field(default_factory=dict)
    groups: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def add(self, record: Record, exchange: Exchange) -> None:
        """Keep a rank's record; equal programs and lists of ranks are kept once."""
        program = self.programs.setdefault(record.program, record.program)
        groups = tuple(Group(group.name, self._shared(group.ranks), group.desc) for group in record.groups)
        made = tuple((self._shared(ranks), desc) for ranks, desc in record.made)
        self.records[record.rank] = replace(record, program=program, groups=groups, made=made)
        self.offers.update(exchange.given)
        self.spread |= exchange.spread
        self.made_up |= exchange.made_up

    def _shared(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the same tuple for equal ones."""
        return self.groups.setdefault(ranks, ranks)


@dataclass(slots=True)
class _Child:
    """The process of a rank."""

    rank: int
    pid: int
    pipe: Connection
    deadline_s: float
    asks: tuple[Key, tuple[int, ...]] | None = None
    """What it waits for, and for whom."""


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
    """Simulate ranks, the lowest first: it mostly decides for the others.

    Args:
        ranks: which.
        body: what each runs.
        collected: what is known from earlier simulations; gets the records.
        processes: at most so many run at once.
        limit_s: of one rank; the body keeps it, a process that does not is killed.
        progress: told how many ranks are done.
        spoiled: see `Exchange`.
        live: whether all ranks are simulated at the same time; at most MOST_LIVE_RANKS.

    Raises:
        DtkError: a body raised it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Sums of live ranks are made here, and threads of torch do not outlive a fork.
    pool = _Pool(sorted(ranks), body, collected, limit_s, progress, spoiled, live, set(collected.records))
    try:
        with _forking(pool.children):
            pool.run(processes)
    finally:
        torch.set_num_threads(threads)


@dataclass(slots=True)
class _Pool:
    """The ranks under way; what `simulate` was told, and how far it is."""

    waiting: list[int]
    """That are to be simulated, also those that have to be again."""
    body: Body
    collected: Collected
    limit_s: float
    progress: Callable[[int], None] | None
    spoiled: frozenset[Key]
    live: bool
    done: set[int]
    children: list[_Child] = field(default_factory=list)
    needs: dict[int, set[int]] = field(default_factory=dict)
    """Rank -> ranks that it has to be simulated after."""
    tries: Counter[int] = field(default_factory=Counter)
    results: Results = field(default_factory=Results)
    adrift: bool = False
    """No live rank could continue: placeholder values are used from here."""

    def run(self, processes: int) -> None:
        """Until every rank has ended."""
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
        """Give values to those who wait for what is known by now."""
        for child in sorted(self.children, key=lambda child: child.rank):
            if len(self._running()) >= processes:
                return
            if child.asks is None or not (self.adrift or self.results.complete(*child.asks)):
                continue
            answer = None if self.adrift else self.results.take(child.asks[0], child.rank)
            child.asks, child.deadline_s = None, time.monotonic() + self.limit_s + GRACE_S
            with suppress(OSError):  # Gone: its end is heard next.
                child.pipe.send_bytes(pickle.dumps((self.adrift, answer)))

    def _take(self, child: _Child) -> None:
        """One message."""
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
        """Keep what a child recorded; it has to run again where it needed values of ranks that come after it."""
        status = os.waitpid(child.pid, 0)[1]
        rank, missed = child.rank, set()
        if not content:  # Its process ended partway, which loses the calls that it made before.
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            end = End("killed", signal=signal.Signals(number).name if number else "")
            self.collected.add(Record(rank, Program((), b""), (), end), Exchange(rank))
        else:
            value = pickle.loads(content)  # noqa: S301  From our own child.
            if not isinstance(value[0], Record):
                raise DtkError(*value)
            record, exchange, loaded = value
            if not self.collected.records:
                for name in loaded:  # What the first rank had to import is imported here, so that others find it.
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
        """Fork a process that simulates a rank."""
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
                there.send_bytes(END + pickle.dumps(self._made(exchange)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                _leave(code)
        there.close()
        return _Child(rank, pid, here, time.monotonic() + self.limit_s + GRACE_S)

    def _made(self, exchange: Exchange) -> tuple[Any, ...]:
        """In the child: what goes back, a problem of the user's making included."""
        before = set(sys.modules)
        try:
            record = self.body(exchange)
        except DtkError as error:
            return error.what, error.why, error.fix
        exchange.offers, exchange.pipe = {}, None  # The parent has them.
        return record, exchange, [name for name in set(sys.modules) - before if name.partition(".")[0] == "torch"]


@contextmanager
def _forking(children: list[_Child]) -> Iterator[None]:
    """Around everything that forks: what is here stays shared, and none of `children` outlives it."""
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
