"""`dtk show RUN`: prints the state of one run, and which file or override set a key."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from diagnostics.report.runs import details
from diagnostics.runs.find import read_details
from dtk.config.trust import owner
from dtk.console import output
from dtk.console.output import hand_over
from dtk.runs.find import find_readable
from dtk.runs.why import why


def run(arguments: argparse.Namespace) -> int:
    """Print the state of a run, or the origin of a key; DtkError if it does not exist or cannot be read."""
    path = Path(find_readable(arguments.run).path)
    if arguments.why is not None:
        output.put(why(path, arguments.why, as_json=arguments.json))
        return 0
    somebody = owner(path) if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid() else ""
    note = somebody and f"{somebody}, not you: --rerun and resume= refuse it without --trust"
    hand_over(arguments, read_details(path), asdict, details, owner=note)
    return 0
