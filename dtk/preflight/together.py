"""Simulates all ranks at the same time and lets them exchange true values: for code that reads what collectives return.

Every rank has a process; a few of them run, the others wait for values or for their turn. Once nobody can go on, the
ranks stand, and each runs to its end with made-up values, so that its later calls are known too.
"""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from typing import cast

import torch

from dtk.preflight.exchange import Exchange
from dtk.preflight.link import ASK, END, Key, Offer
from dtk.preflight.pool import GRACE_S, Body, Child, Collected, collect, forking, start
from dtk.preflight.results import Results

MOST_RANKS = 64
"""Each takes memory until all have ended."""


def simulate_together(
    ranks: Iterable[int],
    body: Body,
    collected: Collected,
    processes: int,
    limit_s: float,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Simulate all ranks of a job; arguments as for `dtk.preflight.pool.simulate`.

    Raises:
        DtkError: a body raised it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Sums are made here, and threads of torch do not outlive a fork.
    children: list[Child] = []
    try:
        with forking(children):
            _Together(sorted(ranks), body, collected, limit_s, progress, children).run(processes)
    finally:
        torch.set_num_threads(threads)


class _Together:
    """The ranks under way."""

    def __init__(
        self,
        ranks: list[int],
        body: Body,
        collected: Collected,
        limit_s: float,
        progress: Callable[[int], None] | None,
        children: list[Child],
    ) -> None:
        self.waiting = ranks
        """That did not begin."""
        self.body = body
        self.collected = collected
        self.limit_s = limit_s
        self.progress = progress
        self.children = children
        self.asking: dict[int, tuple[Child, Key, tuple[int, ...]]] = {}
        """By rank: who waits for what, and for whom."""
        self.results = Results()
        self.adrift = False
        """Nobody could go on: values are made up from here."""
        self.ended = 0

    def run(self, processes: int) -> None:
        """Until every rank has ended."""
        while self.waiting or self.children:
            self._serve(processes)
            while self.waiting and self._running() < processes:
                rank = self.waiting.pop(0)
                self.children.append(start(self.body, Exchange(rank), self.limit_s, linked=True))
            if not self._running():
                self.adrift = True
                continue
            self._hear()

    def _running(self) -> int:
        return len(self.children) - len(self.asking)

    def _serve(self, processes: int) -> None:
        """Answer those who wait for what is known by now."""
        for rank, (child, key, needed) in sorted(self.asking.items()):
            if self._running() >= processes:
                return
            if self.adrift or self.results.complete(key, needed):
                del self.asking[rank]
                answer = None if self.adrift else self.results.take(key, rank)
                child.deadline_s = time.monotonic() + self.limit_s + GRACE_S
                try:
                    child.pipe.send_bytes(pickle.dumps((self.adrift, answer)))
                except OSError:
                    continue  # Gone: its end is heard next.

    def _hear(self) -> None:
        """Wait for a word of those who run."""
        running = [child for child in self.children if child.rank not in self.asking]
        pipes = wait([child.pipe for child in running], timeout=1.0)
        for child in running:
            if child.pipe in pipes:
                self._take(child)
            elif time.monotonic() > child.deadline_s:
                os.kill(child.pid, signal.SIGKILL)

    def _take(self, child: Child) -> None:
        """One message."""
        try:
            message = child.pipe.recv_bytes()
        except (EOFError, OSError):
            message = b""
        kind, content = message[:1], message[1:]
        if kind not in (b"", END):
            value = pickle.loads(content)  # noqa: S301  From our own child.
            if kind == ASK:
                key, needed = cast("tuple[Key, tuple[int, ...]]", value)
                self.asking[child.rank] = (child, key, needed)
            else:
                self.results.put(Offer(*value))
            return
        child.pipe.close()
        self.children.remove(child)
        collect(child, content if kind == END else None, self.collected)
        self.ended += 1
        if self.progress:
            self.progress(self.ended)
