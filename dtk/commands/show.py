"""`dtk show RUN`: how one run stands, and who set a key of it."""

import argparse
import os
from pathlib import Path
from typing import Any

from diagnostics.runs.find import read_details
from diagnostics.runs.text import details, details_json
from dtk.config.trust import owner
from dtk.console import output
from dtk.console.options import add_json
from dtk.runs.find import RUN_HELP, find_readable
from dtk.runs.why import why


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "show", text="show", help="one run: status, failure, figures, what was recorded; who set a key"
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--why", metavar="KEY", help="which file or override set this key, or each key of this section")
    add_json(parser)
    parser.set_defaults(command=show)


def show(arguments: argparse.Namespace) -> int:
    """Show.

    Raises:
        DtkError: no such run or key, or the run cannot be read.
    """
    path = Path(find_readable(arguments.run).path)
    if arguments.why is not None:
        output.put(why(path, arguments.why, as_json=arguments.json))
        return 0
    run = read_details(path)
    output.put(details_json(run) if arguments.json else details(run))
    if not arguments.json and hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
        output.put(f"owner  {owner(path)}, not you: --rerun and resume= refuse it without --trust\n")
    return 0
