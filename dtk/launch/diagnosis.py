"""The short diagnosis below the message of a failed run. Never raises, and has a time limit."""

import shutil
from contextlib import suppress
from importlib import import_module

from diagnostics.contract.artifacts import RunPaths
from dtk.launch.console import Console
from dtk.record.guard import bounded

LIMIT_S = 20.0  # Chosen: longer than a terminal should wait; the run's own reason is printed before.


def explain(console: Console, paths: RunPaths) -> None:
    """Diagnose the run folder and print the result if a cause was found."""
    if text := explanation(paths, console.live):
        console.rendered(text)


def prepare() -> None:
    """Import what a diagnosis needs, so that it does not delay one later."""
    with suppress(ImportError):  # `explanation` reports it.
        for module in ("diagnose", "evidence.job.gather", "report.terminal", "report.diagnosis"):
            import_module(f"diagnostics.{module}")
        import_module("diagnostics.causes.registry").collect()


def explanation(paths: RunPaths, terminal: bool, *, always: bool = False) -> str:
    """Return the diagnosis of a folder as text, which is empty if no cause was found, unless `always` is set."""

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
