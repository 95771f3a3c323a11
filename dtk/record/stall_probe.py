"""A rank's answer before `dtk watch` stops a job, on the watch's thread: stall duration and dumps."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.record.guard import bounded, guarded

STANDS_S = 5.0  # Chosen: a rank that moved or worked less than this before the request does not hang.
DUMP_S = 2.0  # Chosen: a working disk answers in some 10 ms.


@dataclass(eq=False)
class StallAnswer:
    """Polls for a request and answers it once."""

    paths: RunPaths
    rank: int
    dump: Callable[[], None]
    _answered: bool = False

    def answer(self, idle_s: float, inside: bool) -> None:
        """Dump if this rank is stalled, then answer."""
        if self._answered or not self.paths.question.exists():
            return
        self._answered = True
        with guarded("answer"):
            if idle_s >= STANDS_S:
                bounded("last dumps", self.dump, DUMP_S)
            write_json(self.paths.answer(self.rank), {"idle_s": idle_s, "inside": inside})
