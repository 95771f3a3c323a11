"""`dtk show RUN`: prints the state of one run, and which file or override set a key."""

import argparse
import os
from pathlib import Path

from diagnostics.runs.find import read_details
from diagnostics.runs.text import details, details_json
from dtk.config.trust import owner
from dtk.console import output
from dtk.runs.find import RUN_HELP, find_readable
from dtk.runs.why import why

VALUES = {"run_help": RUN_HELP}


def run(arguments: argparse.Namespace) -> int:
    """Print the state of a run, or the origin of a key; DtkError if it does not exist or cannot be read."""
    path = Path(find_readable(arguments.run).path)
    if arguments.why is not None:
        output.put(why(path, arguments.why, as_json=arguments.json))
        return 0
    run = read_details(path)
    output.put(details_json(run) if arguments.json else details(run))
    if not arguments.json and hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
        output.put(f"owner  {owner(path)}, not you: --rerun and resume= refuse it without --trust\n")
    return 0
