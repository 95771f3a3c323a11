"""Ends a run of a sweep before its time, as by Ctrl-C, when the search says that others were better at this step."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from diagnostics.contract.artifacts import RunPaths
from dtk.console.output import say
from dtk.errors import DtkError
from dtk.launch.stopping import ask_ranks
from dtk.sweep.folder import Sweep, Trial
from dtk.sweep.history import look, tried
from dtk.sweep.search import Search

LOOK_S = 0.5  # How often the metrics are looked at.


class EarlyStop:
    """Watches one run after the other."""

    def __init__(self, search: Search, sweep: Sweep) -> None:
        self.stopped = False
        self._search = search
        self._sweep = sweep

    @contextmanager
    def following(self, trial: Trial) -> Iterator[None]:
        """Watch a run as long as the context is open."""
        self.stopped = False
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(trial, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, trial: Trial, over: threading.Event) -> None:
        seen_bytes = 0
        others = None
        values = self._sweep.points[trial.point].values
        while not over.wait(LOOK_S):
            if self.stopped:
                ask_ranks()  # Again: some may not have listened yet.
                continue
            size_bytes = 0
            if trial.run is not None:
                with suppress(OSError):
                    size_bytes = RunPaths(trial.run).metrics.stat().st_size
            if size_bytes == seen_bytes:
                continue
            seen_bytes = size_bytes
            others = tried(self._sweep, but=trial) if others is None else others
            if self._search.ends(look(trial, values), others):
                self.stopped = True
                ask_ranks()
                with suppress(DtkError):  # A full disk behind standard output is no reason to let the run go on.
                    # In one piece: the console of the run writes at the same time.
                    say("the search ends this run: others were better at this step")
