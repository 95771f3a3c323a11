"""`dtk preflight`: options, where the report goes, exit code. Simulates nothing itself; `--help` needs no torch."""

import argparse
import os
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import command
from dtk.console import options, output
from dtk.console import report as report_forms
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

ENDS, WOULD_HANG = 0, 1  # Exit codes.
MOST_S = 86_400.0  # A day.
RANKS = ("auto", "all", "classes")
PAGE = Path("dtk-preflight.html")


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand; the script's own arguments behind `--` come as `wrapped`."""
    parser = commands.add_parser(
        "preflight",
        text="preflight",
        help="check before a launch whether every rank would finish",
        usage="dtk preflight [KEY=VALUE ...] [options]\n"
        "       dtk preflight --script FILE --world-size N [-- ARGUMENTS]",
    )
    options.add_overrides(parser)
    parser.add_argument("--script", type=Path, metavar="FILE", help="a training script instead of a job of dtk")
    options.add_number(parser, "--world-size", options.whole(1, 1 << 20), "ranks of the script's job, over all nodes")
    options.add_number(parser, "--local-size", options.whole(1, 1 << 20), "ranks per node: gives LOCAL_RANK", 8)
    parser.add_argument("--ranks", choices=RANKS, default="auto", metavar="R", help=f"one of {', '.join(RANKS)}")
    options.add_number(parser, "--steps", options.whole(0, 10_000), "optimizer steps; 0 = to the end of a script", 2)
    options.add_flags(parser, what_if="a table of mishaps on one rank: which hang this job")
    stuck = "a simulated rank that takes longer counts as stuck"
    options.add_number(parser, "--rank-timeout-s", options.above_zero(MOST_S), stuck, 60.0, "S")
    options.add_config_dir(parser)
    options.add_verbose(parser)
    options.add_json(parser)
    options.add_flags(parser, markdown="the report as Markdown")
    options.add_page(parser, PAGE)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print, write.

    Raises:
        DtkError: the job, the script or an option cannot be used.
    """
    _check(arguments)
    # Ranks are simulated on the CPU; a script that asks for a device must find none.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from dtk.preflight.report import as_json, document
    from dtk.preflight.run import Request, preflight

    if arguments.html is not None:
        output.check_page(arguments.html, PAGE)
    limit_s = arguments.rank_timeout_s
    request = options.taken(Request, arguments, script_arguments=tuple(arguments.wrapped), limit_s=limit_s)
    progress = Progress(after_s=AFTER_S)
    try:
        prediction = preflight(request, progress.say)
    finally:
        progress.end()
    report_forms.hand_over(arguments, prediction, as_json, document, brief=not arguments.verbose, page=True)
    return ENDS if prediction.verdict.ends else WOULD_HANG


def _check(arguments: argparse.Namespace) -> None:
    """Raise DtkError for options that cannot be combined."""
    require_training("dtk preflight needs")
    script: Path | None = arguments.script
    if script is None:
        if arguments.wrapped:
            raise DtkError("what follows -- belongs to a script", fix=command("preflight", "--script", "train.py"))
        if arguments.steps == 0:
            raise DtkError("--steps 0 is for scripts", "a job of dtk would be simulated to its last step")
        return
    if arguments.overrides:
        what = f"{arguments.overrides[0]!r} is for a job of dtk"
        raise DtkError(what, "a script has a configuration of its own", "put it after --")
    if not script.is_file():
        raise DtkError(f"there is no script {script}")
    if arguments.what_if:
        raise DtkError("--what-if needs a job of dtk", "what goes wrong is put into its training loop")
    if arguments.world_size is None:
        raise DtkError("a script does not say how many ranks it has", fix="add --world-size 8")
