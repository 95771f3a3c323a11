"""`dtk ui`: serves a page of all runs on this machine."""

import argparse
import sys
import webbrowser
from pathlib import Path

from diagnostics.runs.find import RUNS
from dtk.commands.demo import has_screen
from dtk.errors import DtkError


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C; DtkError if the folder does not exist, or the port is in use."""
    from dtk.ui.server import Server

    folder: Path = arguments.folder
    if not folder.is_dir() and folder != RUNS:
        raise DtkError(f"{folder} is not a folder", fix="name the folder that holds your runs")
    with Server(folder, arguments.port) as server:
        print(f"runs in {folder}: {server.address}\nthis machine only; Ctrl-C stops it", file=sys.stderr, flush=True)
        if not arguments.no_open and has_screen():
            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0
