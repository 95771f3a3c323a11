"""`dtk demo`: runs three faults on this machine and shows what `dtk diagnose` makes of each. Imports no torch itself.

Every part is a process of its own, typed as a user would type it, so that each command can be tried again.
"""

import argparse
import os
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import command, override
from dtk.errors import DtkError

RUNS = Path("runs")
PARTS = {
    "extra_collective": "a deadlock: one rank issues a collective that the others do not",
    "full_gather": "an all_gather of the whole model on every rank",
    "one_bucket": "low overlap: all gradients are reduced at the end, in one bucket",
}
"""Fault -> what it shows."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand `demo` with its options."""
    parser = commands.add_parser("demo", help="run three faults and show their diagnoses (about a minute)")
    parser.add_argument("--runs-folder", type=Path, default=RUNS, metavar="FOLDER", help="default: runs")
    parser.add_argument("--no-open", action="store_true", help="do not open the reports in a browser")
    parser.set_defaults(command=lambda arguments: demo(arguments.runs_folder, not arguments.no_open))


def demo(runs_folder: Path, show: bool) -> int:
    """Run and diagnose the three faults.

    Args:
        runs_folder: where the run folders are made.
        show: open the HTML reports, if there is a screen.

    Returns:
        0 when each was diagnosed, else 1.

    Raises:
        DtkError: a fault could not be run at all.
    """
    pages, diagnosed = [], True
    for number, (fault, title) in enumerate(PARTS.items(), 1):
        print(f"\n[{number}/{len(PARTS)}] {title}", flush=True)
        arguments = ["run", f"fault={fault}", override("runs_folder", runs_folder)]
        print(f"$ {command(*arguments)}", flush=True)
        before = _folders(runs_folder)
        code = subprocess.run([sys.executable, "-m", "dtk", *arguments], check=False).returncode
        folder = max(_folders(runs_folder) - before, default=None)
        if folder is None:
            raise DtkError(f"fault={fault} left no run folder", f"dtk run ended with exit code {code}")
        print(f"\n$ {command('diagnose', folder)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "dtk", "diagnose", str(folder)], check=False).returncode
        diagnosed = diagnosed and code == 1
        pages.append(folder / "report" / "report.html")
    pages = [page for page in pages if page.is_file()]
    if pages:
        print("\nreports to open in a browser:")
        print("\n".join(f"  {page}" for page in pages))
    if show and has_screen():
        for page in pages:
            webbrowser.open(page.resolve().as_uri())
    return 0 if diagnosed else 1


def _folders(runs_folder: Path) -> set[Path]:
    return {path for path in runs_folder.iterdir() if path.is_dir()} if runs_folder.is_dir() else set()


def has_screen() -> bool:
    """Whether somebody is at a terminal of a machine with a display, where a browser can be opened."""
    desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(desktop) and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ
