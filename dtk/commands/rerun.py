"""`dtk rerun RUN`: the short name of `dtk run --rerun RUN`, and the check of the code that both make."""

import argparse
from typing import Any

from dtk.console.options import add_config_dir
from dtk.extras import require_training
from dtk.runs.find import RUN_HELP

_DESCRIPTION = """\
Run a job once more, as a run of its own: the configuration that the run folder holds, whatever has become of conf/
since, with KEY=VALUE on top. A choice (strategy=ddp) replaces its section by the file's, any other key only itself.

First the code is compared with the run's manifest: git commit, uncommitted changes (by hash), versions of Python, dtk,
torch and the like. What differs is a warning, with --strict the end."""
_EPILOG = """\
examples:
  dtk rerun last                               once more
  dtk rerun last --strict                      only if the code is what it was
  dtk rerun runs/<id> strategy=zero2           the same job under another strategy
  dtk rerun runs/<id> seed=2 train.steps=200
  dtk rerun last --cfg                         print the configuration, run nothing

The same as dtk run --rerun RUN [KEY=VALUE ...]; with -m that runs a sweep of a stored run.
To go on with a run instead: dtk run resume=runs/<id>.
exit code: that of dtk run: 0 finished; 1 a rank failed; 2 wrong input, or --strict and other code (one line)."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "rerun",
        help="run a job once more with the same configuration",
        usage="dtk rerun RUN [KEY=VALUE ...] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("rerun", metavar="RUN", help=RUN_HELP)
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="what is to differ")
    parser.add_argument("--strict", action="store_true", help="refuse if the code differs, or cannot be compared")
    parser.add_argument("--trust", action="store_true", help="take a run folder that others own or can write to")
    add_config_dir(parser)
    parser.add_argument("--cfg", action="store_true", help="print the configuration and stop")
    parser.set_defaults(command=rerun, multirun=False, resume=False, dry_run=False, stopped="before the first step")


def rerun(arguments: argparse.Namespace) -> int:
    """Hand over to `dtk run`.

    Raises:
        DtkError: the training extra is not installed.
    """
    require_training("dtk rerun needs")
    from dtk.run import run

    return run(arguments)
