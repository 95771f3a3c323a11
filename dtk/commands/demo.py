"""`dtk demo`: runs three faults and shows what `dtk diagnose` says about each, with each command as a user types it."""

import argparse
import os
import subprocess
import sys
import webbrowser

from diagnostics.contract.formatting import command, override
from dtk.console.options import read_options
from dtk.errors import DtkError
from dtk.launch.short_run import folders

PARTS: dict[str, str] = read_options(__file__)["parts"]  # Fault -> title printed before its run.


def run(arguments: argparse.Namespace) -> int:
    """Run, diagnose and show three faults; return 0 if all were diagnosed; DtkError if one could not be run."""
    runs_folder, pages, diagnosed = arguments.runs_folder, [], True
    for number, (fault, title) in enumerate(PARTS.items(), 1):
        print(f"\n[{number}/{len(PARTS)}] {title}", flush=True)
        typed = ["run", f"fault={fault}", override("runs_folder", runs_folder)]
        print(f"$ {command(*typed)}", flush=True)
        before = folders(runs_folder)
        code = subprocess.run([sys.executable, "-m", "dtk", *typed], check=False).returncode
        folder = max(folders(runs_folder) - before, default=None)
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
    if has_screen() and not arguments.no_open:
        for page in pages:
            webbrowser.open(page.resolve().as_uri())
    return 0 if diagnosed else 1


def has_screen() -> bool:
    """Return whether standard output is a terminal on a machine with a display, so that a browser can be opened."""
    desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(desktop) and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ
