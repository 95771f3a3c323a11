"""Simulates ranks in forked processes, a few at a time, and collects what each of them recorded.

A process for each rank: what a rank does to its memory, its modules or itself (exit, SIGKILL) stays its own, and
memory does not grow with the ranks. Knows nothing of what a rank runs. Must be called before this process has run
backward or more than one thread of torch, neither of which outlives a fork.
"""

import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from dtk.preflight.calls import End, Group, Program, Record
from dtk.preflight.exchange import Exchange
from dtk.preflight.link import END, Key, Link

Body = Callable[[Exchange], Record]
"""Simulates one rank in a process of its own; raises DtkError for what makes the whole job impossible to simulate."""
RETRIES = 3
"""How often a rank is simulated again because it needed a value of a rank that came after it."""
_leave = os._exit
"""Kept: a simulated rank cannot call it."""
_LAST_STANDARD = 2
"""Standard error; 0 and 1 are input and output."""
GRACE_S = 10.0
"""A process that has not ended this long after its own limit is killed."""


@dataclass(slots=True)
class Collected:
    """What is known of all simulated ranks."""

    records: dict[int, Record] = field(default_factory=dict)
    known: dict[Key, bytes] = field(default_factory=dict)
    """What ranks left for each other."""
    spread: frozenset[tuple[str, int]] = frozenset()
    """Where values that are not numbers went into a collective."""
    made_up: bool = False
    """Whether values of calls were made up that code may have read."""
    watches: bool = False
    """Whether to look for such values."""
    programs: dict[Program, Program] = field(default_factory=dict)
    groups: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def add(self, record: Record, exchange: Exchange) -> None:
        """Keep a rank's record; equal programs and lists of ranks are kept once."""
        program = self.programs.setdefault(record.program, record.program)
        groups = tuple(Group(one.name, self.shared(one.ranks), one.desc) for one in record.groups)
        made = tuple((self.shared(ranks), desc) for ranks, desc in record.made)
        self.records[record.rank] = replace(record, program=program, groups=groups, made=made)
        self.known.update(exchange.given)
        self.spread |= exchange.spread
        self.made_up |= exchange.made_up

    def shared(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The same tuple for equal ones."""
        return self.groups.setdefault(ranks, ranks)


@dataclass(slots=True)
class Child:
    """The process of a rank."""

    rank: int
    pid: int
    pipe: Connection
    deadline_s: float


def simulate(
    ranks: Iterable[int],
    body: Body,
    collected: Collected,
    processes: int,
    limit_s: float,
    progress: Callable[[int], None] | None = None,
    spoiled: frozenset[tuple[str, int]] = frozenset(),
) -> None:
    """Simulate ranks, the lowest first and alone: it mostly decides for the others.

    Args:
        ranks: which.
        body: what each runs.
        collected: what is known from earlier simulations; gets the records.
        processes: at most so many at once.
        limit_s: of one rank; the body keeps it, a process that does not is killed.
        progress: told how many ranks are done.
        spoiled: see `Exchange`.

    Raises:
        DtkError: a body raised it.
    """
    waiting = deque(sorted(ranks))
    tries: dict[int, int] = {}
    needs: dict[int, set[int]] = {}
    children: list[Child] = []
    done: set[int] = set(collected.records)
    began = bool(done)
    with forking(children):
        while waiting or children:
            while len(children) < (processes if began else 1):
                rank = _next(waiting, needs, done, idle=not children)
                if rank is None:
                    break
                exchange = Exchange(rank, collected.known, frozenset(done), spoiled, watches=collected.watches)
                children.append(start(body, exchange, limit_s))
            for child in _ready(children):
                children.remove(child)
                began = True
                missed = collect(child, _answer(child), collected)
                if missed and tries.get(child.rank, 0) < RETRIES:
                    waiting.append(child.rank)
                    needs[child.rank] = missed
                    tries[child.rank] = tries.get(child.rank, 0) + 1
                else:
                    done.add(child.rank)
                    if progress:
                        progress(len(done))


@contextmanager
def forking(children: list[Child]) -> Iterator[None]:
    """Around everything that forks: what is here stays shared, and no child outlives it.

    Args:
        children: those under way, at any moment.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
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


def _next(waiting: deque[int], needs: dict[int, set[int]], done: set[int], *, idle: bool) -> int | None:
    """The first rank whose needs are met; any when they wait for each other and nothing runs."""
    for rank in waiting:
        if needs.get(rank, set()) <= done or (idle and not any(needs.get(one, set()) <= done for one in waiting)):
            waiting.remove(rank)
            return rank
    return None


def _ready(children: list[Child]) -> list[Child]:
    """Those that have answered or are gone; one that is far too late is killed."""
    pipes = wait([child.pipe for child in children], timeout=1.0)
    for child in children:
        if child.pipe not in pipes and time.monotonic() > child.deadline_s:
            os.kill(child.pid, signal.SIGKILL)
    return [child for child in children if child.pipe in pipes]


def start(body: Body, exchange: Exchange, limit_s: float, *, linked: bool = False) -> Child:
    """Fork a process that simulates a rank.

    Args:
        body: what it runs.
        exchange: what it gets from the others.
        limit_s: see `simulate`.
        linked: whether it exchanges values with the others on its way; each message then says what it is.
    """
    here, there = Pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    pid = os.fork()
    if pid == 0:
        here.close()
        exchange.link = Link(there) if linked else None
        code = 1
        try:
            there.send_bytes((END if linked else b"") + _run(body, exchange))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            _leave(code)
    there.close()
    return Child(exchange.rank, pid, here, time.monotonic() + limit_s + GRACE_S)


def _run(body: Body, exchange: Exchange) -> bytes:
    """In the child: what goes back, a problem of the user's making included."""
    from dtk.errors import DtkError

    before = set(sys.modules)
    try:
        record = body(exchange)
    except DtkError as error:
        return pickle.dumps((error.what, error.why, error.fix))
    exchange.known = {}  # The parent has it.
    exchange.made_up, exchange.link = exchange.link is not None and exchange.link.made_up, None
    loaded = [name for name in sys.modules if name.partition(".")[0] == "torch" and name not in before]
    return pickle.dumps((record, exchange, loaded))


def _load(names: Iterable[str]) -> None:
    """Import here what the first rank had to import, so that the others find it."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def _answer(child: Child) -> bytes | None:
    """What the child sent; None when it is gone without a word."""
    try:
        return child.pipe.recv_bytes()
    except (EOFError, OSError):
        return None
    finally:
        child.pipe.close()


def collect(child: Child, answer: bytes | None, collected: Collected) -> set[int]:
    """Keep what a child recorded; the ranks after which it has to run again, as it needed their values."""
    from dtk.errors import DtkError

    status = os.waitpid(child.pid, 0)[1]
    if answer is None:
        collected.add(_gone(child.rank, status), Exchange(child.rank))
        return set()
    value = pickle.loads(answer)  # noqa: S301  From our own child.
    if not isinstance(value[0], Record):
        raise DtkError(*value)
    record, exchange, loaded = value
    if not collected.records:
        _load(loaded)
    collected.add(record, exchange)
    return {rank for rank in exchange.missed if rank != child.rank}


def _gone(rank: int, status: int) -> Record:
    """A rank whose process ended in the middle: what it called before is lost with it."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    end = End("killed", signal=signal.Signals(number).name if number else "")
    return Record(rank, Program((), b""), (), end)
