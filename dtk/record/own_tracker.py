"""The base class of trackers, built-in and custom (`tracker=custom`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class OwnTracker:
    """Receives what a run records. It runs in a process next to rank 0, so it can neither stop nor slow down a step.

    An exception ends the tracker with one line on standard error, and training continues.
    """

    def begin(self, run_id: str, folder: Path, config: dict[str, Any]) -> None:
        """Start a run, or continue the one with this id, the name of the run folder; it is the same after a resume.

        The configuration is resolved, nested, and its secrets are masked.
        """

    def log(self, step: int, figures: dict[str, float], time_s: float) -> None:
        """Receive the metrics of one optimizer step, recorded at `time_s` (seconds since 1970).

        Units are in the names of the figures (`dtk.record.metrics.DEFINITIONS`).
        """

    def finish(self, exit_code: int) -> None:
        """Send everything that is pending; exit code 0 means that the run finished."""

    def summary(self, figures: dict[str, Any]) -> None:
        """Receive the final figures, as in summary.json."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Receive a table at the end: `plan_and_actual`, `parity`, `memory`, `memory_timeline` or `diagnosis`."""

    def artifact(self, name: str, kind: str, files: dict[str, Path]) -> None:
        """Receive files at the end: the diagnosis, or the last checkpoint if uploads are enabled.

        `name` is `diagnosis` or `checkpoint`, `kind` the type of the artifact, `files` are by path inside it.
        """

    def alert(self, title: str, text: str) -> None:
        """Receive an urgent message: a hang, a non-finite loss, replicas that differ."""
