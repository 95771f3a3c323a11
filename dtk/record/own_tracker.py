"""The base class of trackers: dtk's own and a user's (`tracker=custom`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class OwnTracker:
    """Takes what a run records. It lives in a process beside rank 0, so it can neither stop nor slow a step.

    An exception ends the tracker with one line on standard error, and training continues.
    """

    def begin(self, run_id: str, folder: Path, config: dict[str, Any]) -> None:
        """Begin, or continue a run of this id.

        Args:
            run_id: name of the run folder; a resumed run keeps it.
            folder: the run folder.
            config: the resolved configuration, nested, secrets masked.
        """

    def log(self, step: int, figures: dict[str, float], time_s: float) -> None:
        """Take the metrics of one step.

        Args:
            step: optimizer steps finished.
            figures: name -> number; units are in the names (`dtk.record.metrics.DEFINITIONS`).
            time_s: when they were recorded, seconds since 1970.
        """

    def finish(self, exit_code: int) -> None:
        """Send what is left; 0 = the run finished."""

    def summary(self, figures: dict[str, Any]) -> None:
        """Take the final figures, as summary.json has them."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Take a table at the end: `plan_and_actual`, `parity`, `memory`, `memory_timeline` or `diagnosis`."""

    def artifact(self, name: str, kind: str, files: dict[str, Path]) -> None:
        """Take files at the end: the diagnosis, or the last checkpoint if it was asked for.

        Args:
            name: `diagnosis` or `checkpoint`.
            kind: what sort of files they are.
            files: path inside the artifact -> file.
        """

    def alert(self, title: str, text: str) -> None:
        """Take news that somebody should hear of at once: a hang, a loss that is not finite, replicas that differ."""
