"""Prints the diagnosis of a run that hung, below the line that says so. Never fails and never waits for long."""

import shutil

from diagnostics.artifacts import RunPaths
from dtk.launch.console import Console
from dtk.record.guard import bounded

LIMIT_S = 20.0
"""Longest wait for a diagnosis; the run's own reason stands above it."""


def explain(console: Console, paths: RunPaths) -> None:
    """Diagnose the run folder and print what was found, if a cause was."""
    found: list[str] = []

    def run() -> None:
        from diagnostics.diagnose import diagnose
        from diagnostics.report.terminal import render

        report = diagnose(paths.root)
        if report.root_causes:
            columns = shutil.get_terminal_size().columns if console.live else None
            found.append(render(report, columns=columns, colour=console.live))

    bounded("diagnosis", run, LIMIT_S)
    for text in found:
        console.line(text.rstrip("\n"))
