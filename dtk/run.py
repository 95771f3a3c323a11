"""`python -m dtk.run`: options and exit codes; `dtk.launch` composes, checks, creates the run folder and launches.

The parent composes once; ranks receive a folder with the resolved configuration. Under torchrun and srun the ranks
already exist: rank 0 composes and shares the configuration.
"""

import argparse
import gc
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtk.config import help as config_help
from dtk.config.compose import files_merged
from dtk.console.options import Parser, add_options, read_options
from dtk.errors import DtkError, ended
from dtk.extras import load, require_training
from dtk.launch.prepare import compose_point, place_point, print_configuration
from dtk.start.point import run_point


def main(argv: list[str] | None = None) -> int:
    """Parse and run; print errors that the user can fix as one line.

    Return 0 finished, 1 a rank failed, 2 invalid input; 129, 130 or 143 stopped by a signal, with a checkpoint.
    """
    gc.disable()  # Objects of torch's and Hydra's import live to the end: scanning them is a third of the start.
    try:
        return ended(lambda: run(_parse(sys.argv[1:] if argv is None else argv)), "before the first step")
    finally:
        gc.enable()


class _Help(argparse.Action):
    """`--help`, `--help GROUP` and `--help all`."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Print the requested help and exit; DtkError if the group is unknown."""
        which = str(values or "").partition("=")[0]
        text = config_help.help_text(which)
        if which in ("", config_help.ALL):
            parser.values = {"choices": text.rstrip("\n")}
        else:  # Only one group was requested.
            parser = Parser(usage=argparse.SUPPRESS, description=text, add_help=False)
        parser.print_help()
        parser.exit()


_KINDS = {"--cfg": ("job", "hydra", "all"), "--info": ("all", "config", "defaults", "defaults-tree", "searchpath")}


def _parse(argv: list[str]) -> argparse.Namespace:
    short = {"-cn": "--config-name", "-cp": "--config-dir", "-cd": "--config-dir", "-c": "--cfg", "-p": "--package"}
    argv = [short.get(word, word) for word in argv]
    hydras = read_options(__file__)["hydras"]
    for word in argv:
        if (name := word.partition("=")[0]) in hydras:
            raise DtkError(f"dtk run has no {name}", *hydras[name])
    # Hydra's `--cfg job` and `--info defaults`: dtk prints the job, and everything that it knows about the files.
    kinds = [after for word, after in pairwise(argv) if after in _KINDS.get(word, ())]
    if "hydra" in kinds:
        raise DtkError("--cfg hydra prints nothing", "dtk uses Hydra to compose only", "use --cfg, or --cfg job")
    arguments = options().parse_intermixed_args([word for word in argv if word not in kinds])
    if arguments.config_name is not None:
        name = arguments.config_name.removesuffix(".yaml")
        arguments.config_dir = (arguments.config_dir or Path("conf")) / f"{name}.yaml"
    return arguments


def options() -> Parser:
    """Return the parser of `dtk run`."""
    parser = Parser(prog="dtk run", text="run", add_help=False)
    about = "show this help, or the options of GROUP, and exit"
    parser.add_argument("-h", "--help", nargs="?", metavar="GROUP", action=_Help, help=about)
    add_options(parser, read_options(__file__)["options"])
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; see `main` for the exit codes. DtkError if an option or the job cannot be used."""
    require_training("dtk run needs")
    load("torch")
    if arguments.rerun is not None:
        from dtk.runs.code import earlier_run

        arguments.rerun = earlier_run(arguments.rerun, strict=arguments.strict)
    elif arguments.strict:
        raise DtkError("--strict compares the code with that of a run", fix="add --rerun RUN")
    from dtk.rank.job import started_by

    if arguments.info:
        print(files_merged(arguments.overrides, arguments.config_dir), end="")
        return 0
    if started_by(os.environ) is not None and not arguments.cfg:
        if arguments.multirun:
            raise DtkError("-m starts its jobs itself", "torchrun or srun started this process", "drop -m")
        from dtk.start.rank_zero import join_job

        return join_job(arguments)
    if arguments.multirun:
        if arguments.dry_run:
            raise DtkError("--dry-run prints one job", "-m makes several", "drop -m")
        from dtk.sweep.local import multirun

        return multirun(arguments)
    if arguments.resume:
        raise DtkError("--resume continues a sweep", "this is a single run", "add -m; to continue a run use resume=RUN")
    point = compose_point(arguments.overrides, arguments.config_dir, arguments.rerun, trust=arguments.trust)
    if arguments.cfg:
        print_configuration(point)
        return 0
    return run_point(*place_point(point), dry_run=arguments.dry_run)


if __name__ == "__main__":
    sys.exit(main())
