"""Terminal output of `dtk run`: banner, progress, failure and its short diagnosis, next command."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from textwrap import indent

from diagnostics.contract.artifacts import Failure, RunPaths, read_status, write_json
from diagnostics.contract.files import open_regular
from diagnostics.contract.formatting import clean, ranks_spoken, region_text
from diagnostics.contract.invocation import typed
from dtk.launch.blame import find_failure
from dtk.record.guard import bounded
from dtk.train.progress import REPLACEABLE

POLL_S = 0.1  # Chosen: lines appear without visible delay.
_ERASE = "\r\x1b[2K"
LIMIT_S = 20.0  # Chosen: longer than a terminal should wait; the run's own reason is printed before.


class Console:
    """Prints for one run. Uses colours and a live line only on a terminal."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._line_open = False

    def line(self, text: str, colour: int | None = None) -> None:
        """Print a permanent line, in bold and with a colour (an ANSI code) if one is given and this is a terminal."""
        text = clean(text)
        self.rendered(f"\x1b[1;{colour}m{text}\x1b[0m" if colour is not None and self.live else text)

    def rendered(self, text: str) -> None:
        """Print text that a renderer has already made safe for a terminal, in place of the live line."""
        _write(f"{_ERASE * self._line_open}{text}\n")
        self._line_open = False

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces on a terminal; otherwise print it as `line` does."""
        if not self.live:
            self.line(text)
            return
        width = shutil.get_terminal_size().columns
        _write(f"{_ERASE}{clean(text)[: width - 1]}")
        self._line_open = True

    def fields(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print labels and texts, aligned and indented; a row without a label continues the one before."""
        from diagnostics.report import document as doc, terminal

        fields = doc.Fields(tuple(doc.Field(label, text) for label, text in rows))
        text = terminal.render(doc.Document("", "", (fields,)), columns=None, colour=self.live)
        self.rendered(indent(text, "  ").rstrip("\n"))

    def end_live(self) -> None:
        """Make the live line permanent and continue below it."""
        if self._line_open:
            _write("\n")
            self._line_open = False

    def failure(self, failure: Failure, state: str, paths: RunPaths) -> None:
        """Print five lines: which rank, what, where, which other ranks it took down, which log."""
        where = [f"step {failure.step}"] if failure.step is not None else []
        where += [f"region {region_text(failure.region)}"] if failure.region else []
        who = f": rank {failure.rank}{' failed first' * (state != 'hung')}" if failure.rank >= 0 else ""
        self.line(f"{state.upper()}{who}", 31)
        rows = [
            ("what", failure.reason),
            ("where", ", ".join(where) or "before the first step, or unknown (record=off)"),
        ]
        if failure.victims:
            rows.append(("then", f"{ranks_spoken(failure.victims)} ended as a consequence"))
        if failure.log:
            rows.append(("log", str(typed(paths.root / failure.log))))
        self.fields(rows)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:  # Closed: further output is discarded, including what the interpreter flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@dataclass(eq=False)
class Follower:
    """Follows the logs of this machine's ranks on a thread while the agent waits for the ranks."""

    paths: RunPaths
    console: Console
    nproc: int
    attempt: int
    exit_codes: dict[int, dict[int, int]]
    """Of the ranks that failed first, by attempt; filled by the agent."""
    tick: Callable[[], None]

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._offsets: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()
        self.console.end_live()

    def _run(self) -> None:
        rounds = 0
        while not self._stop.wait(POLL_S):
            self._poll()
            rounds += 1
            if rounds % 10 == 0:
                self.tick()

    def _poll(self) -> None:
        if self.paths.logs(self.attempt + 1, 0).exists():
            self._read_all()
            self.attempt += 1
            # The agent waits for the remaining ranks, so all error files exist.
            exit_codes = self.exit_codes.get(self.attempt - 1, {})
            failure, _ = find_failure(self.paths, self.attempt - 1, self.nproc, exit_codes)
            who = f"rank {failure.rank}: " if failure.rank >= 0 else ""
            self.console.line(f"attempt {self.attempt - 1} failed: {who}{failure.reason}")
            self.console.line(f"restarting: attempt {self.attempt}")
            with suppress(OSError, ValueError):  # A full disk: the ranks report it.
                write_json(self.paths.status, replace(read_status(self.paths.status), attempt=self.attempt))
        self._read_all()

    def _read_all(self) -> None:
        for text in self._new_lines(self.paths.logs(self.attempt, 0) / "stdout.log"):
            (self.console.progress if text.endswith(REPLACEABLE) else self.console.line)(text.removesuffix(REPLACEABLE))
        for rank in range(self.nproc):
            for text in self._new_lines(self.paths.logs(self.attempt, rank) / "stderr.log"):
                if text.startswith("dtk: "):
                    self.console.line(f"[rank {rank}] {text.removeprefix('dtk: ')}")

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with open_regular(path) as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read(1 << 20)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + end
        return data[:end].decode("utf-8", "replace").split("\n")[:-1]


def explain(console: Console, paths: RunPaths) -> None:
    """Diagnose the run folder and print the result if a cause was found."""
    if text := explanation(paths, console.live):
        console.rendered(text)


def import_diagnosis() -> None:
    """Import what a diagnosis needs, so that it does not delay one later."""
    with suppress(ImportError):  # `explanation` reports it.
        for module in ("diagnose", "evidence.job.gather", "report.terminal", "report.diagnosis"):
            import_module(f"diagnostics.{module}")
        import_module("diagnostics.causes.registry").collect()


def explanation(paths: RunPaths, terminal: bool, *, always: bool = False) -> str:
    """Return a folder's diagnosis in limited time; empty if it failed, or found no cause and `always` is not set."""

    def run() -> str:
        from diagnostics.contract.errors import DiagnosticsError
        from diagnostics.diagnose import diagnose
        from diagnostics.report.diagnosis import document
        from diagnostics.report.terminal import render

        with suppress(DiagnosticsError):  # No evidence.
            report = diagnose(paths.root)
            if report.root_causes or always:
                columns = shutil.get_terminal_size().columns if terminal else None
                return render(document(report, brief=True), columns=columns, colour=terminal).rstrip("\n")
        return ""

    return bounded("diagnosis", run, LIMIT_S) or ""
