"""`dtk rerun RUN`: the short name of `dtk run --rerun RUN`, and the check of the code that both make."""

import argparse
from typing import Any

from dtk.console.options import add_config_dir, add_flags, add_overrides
from dtk.extras import require_training
from dtk.runs.find import RUN_HELP


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "rerun",
        text="rerun",
        help="run a job again with the same configuration",
        usage="dtk rerun RUN [KEY=VALUE ...] [options]",
    )
    parser.add_argument("rerun", metavar="RUN", help=RUN_HELP)
    add_overrides(parser, "what is to differ")
    add_flags(
        parser,
        strict="refuse if the code differs, or cannot be compared",
        trust="take a run folder that others own or can write to",
    )
    add_config_dir(parser)
    add_flags(parser, cfg="print the configuration and stop")
    parser.set_defaults(command=rerun, multirun=False, resume=False, dry_run=False, stopped="before the first step")


def rerun(arguments: argparse.Namespace) -> int:
    """Hand over to `dtk run`.

    Raises:
        DtkError: the training extra is not installed.
    """
    require_training("dtk rerun needs")
    from dtk.run import run

    return run(arguments)
