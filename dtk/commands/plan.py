"""`dtk plan`: options, where the report goes, exit code. Plans nothing itself, and `--help` imports no torch."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import add_config_dir, add_flags, add_json, add_overrides, taken
from dtk.errors import DtkError
from dtk.extras import require_training

FITS, TOO_LARGE = 0, 1  # Exit codes.
PAGE = Path("plan.html")
ENGINES = ("auto", "closed_form", "simulated", "both")


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "plan",
        text="plan",
        help="predict memory, communication and step time before a launch",
        usage="dtk plan [KEY=VALUE ...] [hardware=NAME] [options]",
    )
    add_overrides(parser, "as for dtk run, and hardware=NAME")
    add_flags(
        parser,
        compare="all strategies side by side, and which one to take",
        search="the fastest layouts: degrees, strategy, recomputation, micro-batch",
        max_model="the deepest and widest model of this kind that fits",
        max_batch="the largest train.micro_batch_size that fits",
        memory_table="bytes per parameter of each precision with Adam, by ZeRO stage",
    )
    parser.add_argument("--world-size", metavar="N,N,...", help="the same on these numbers of ranks")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page with plots as well")
    add_json(parser)
    engines = f"one of {', '.join(ENGINES)} (default: closed_form, checked by simulated if it can be)"
    parser.add_argument("--engine", choices=ENGINES, default="auto", metavar="E", help=engines)
    add_flags(parser, calibrate="measure this machine and keep it as hardware=measured")
    add_config_dir(parser)
    parser.set_defaults(command=run, stopped="before the plan was made")


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, write.

    Raises:
        DtkError: the job, the hardware or an option cannot be used.
    """
    require_training("dtk plan needs")
    if arguments.calibrate:
        if arguments.overrides:
            why = f"{arguments.overrides[0]} has no effect on it"
            raise DtkError("--calibrate measures this machine", why, "drop it")
        from dtk.bench.calibrate import calibrate
        from dtk.plan.report import measured

        hardware = calibrate(say=lambda line: print(f"dtk: {line}", file=sys.stderr, flush=True))
        report_forms.hand_over(arguments, hardware, measured.as_json, measured.document)
        return FITS
    if arguments.html is not None:
        output.check_page(arguments.html, PAGE)
    from dtk.plan.make import Request, make
    from dtk.plan.report.document import document
    from dtk.plan.report.model import as_json

    request = taken(Request, arguments, world_sizes=arguments.world_size, plots=arguments.html is not None)
    report = make(request)
    report_forms.hand_over(arguments, report, as_json, document, page=True)
    return TOO_LARGE if report.plan.fits is False else FITS
