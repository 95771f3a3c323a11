"""`dtk plan`: options, where the report goes, exit code. Plans nothing itself, and `--help` imports no torch."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import add_config_dir, add_json, taken
from dtk.errors import DtkError
from dtk.extras import require_training

FITS, TOO_LARGE = 0, 1
PAGE = Path("plan.html")
ENGINES = ("auto", "closed_form", "simulated", "both")

DESCRIPTION = """\
Say before the launch what a job needs: memory per rank and what it consists of, what is communicated,
how long a step takes, whether it fits the device and by how much. Takes what `dtk run` takes, needs no
GPU and no data, and works for any number of ranks."""

EXAMPLES = """\
examples:
  dtk plan strategy=fsdp model=gpt2_xl launcher.world_size=64 hardware=h100_sxm
  dtk plan strategy=ddp model=gpt2                     memory and traffic, no device chosen
  dtk plan model=gpt2_xl launcher.world_size=8 hardware=a100_40 --compare
                                                       all strategies side by side, and which one to take
  dtk plan model=llama3_70b launcher.world_size=512 hardware=h100_sxm precision=bf16 --search
                                                       every layout of 512 ranks, the fastest that fit
  dtk plan strategy=fsdp model=gpt2_xl hardware=rtx4090 --max-batch --max-model
                                                       the largest micro-batch and model that fit
  dtk plan strategy=fsdp model=gpt2_xl hardware=h100_sxm --world-size 8,64,512,4096
                                                       how memory, step time and tokens/s scale
  dtk plan strategy=fsdp model=gpt2 hardware=h200 --html plan.html
                                                       one page to open or to send, with plots
  dtk plan --calibrate                                 measure this machine; then use hardware=measured

hardware=NAME is a device of conf/hardware, a YAML file of the same form, or `measured`.
launcher.world_size=N is the number of ranks over all nodes; without it, as many as one node has.
Two engines check each other: `closed_form` is arithmetic and instant, `simulated` runs the real step
on tensors without memory, some seconds. Where they differ by more than 5 % both figures are shown.

exit code: 0 it fits, or no device was chosen; 1 it does not fit; 2 wrong input (one line).
Guide, formulas and accuracy: docs/plan.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its options."""
    parser = commands.add_parser(
        "plan",
        help="before a launch: does it fit, what does it send, how long does a step take",
        usage="dtk plan [KEY=VALUE ...] [hardware=NAME] [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for dtk run, and hardware=NAME")
    parser.add_argument("--compare", action="store_true", help="all strategies side by side, and which one to take")
    parser.add_argument(
        "--search",
        action="store_true",
        help="the fastest layouts: degrees, strategy, recomputation, micro-batch",
    )
    parser.add_argument("--max-model", action="store_true", help="the deepest and widest model of this kind that fits")
    parser.add_argument("--max-batch", action="store_true", help="the largest train.micro_batch_size that fits")
    parser.add_argument(
        "--memory-table", action="store_true", help="bytes per parameter of each precision with Adam, by ZeRO stage"
    )
    parser.add_argument("--world-size", metavar="N,N,...", help="the same on these numbers of ranks")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page with plots as well")
    add_json(parser)
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        metavar="E",
        help=f"one of {', '.join(ENGINES)} (default: closed_form, checked by simulated if it can be)",
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure this machine and keep it as hardware=measured"
    )
    add_config_dir(parser)
    parser.set_defaults(command=run, stopped="before the plan was made")


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, write.

    Raises:
        DtkError: the job, the hardware or an option cannot be used.
    """
    require_training("dtk plan needs")
    if arguments.calibrate:
        return _calibrate(arguments)
    if arguments.html is not None:
        output.check_page(arguments.html, PAGE)
    from dtk.plan.make import Asked, make
    from dtk.plan.report.document import document
    from dtk.plan.report.model import as_json

    asked = taken(Asked, arguments, world_sizes=arguments.world_size, plots=arguments.html is not None)
    report = make(asked)
    report_forms.hand_over(arguments, report, as_json, document, page=True)
    return TOO_LARGE if report.plan.fits is False else FITS


def _calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine and say what was found."""
    if arguments.overrides:
        raise DtkError("--calibrate measures this machine", f"{arguments.overrides[0]} has no effect on it", "drop it")
    from dtk.bench.calibrate import calibrate
    from dtk.plan.report import measured

    found = calibrate(say=lambda line: print(f"dtk: {line}", file=sys.stderr, flush=True))
    report_forms.hand_over(arguments, found, measured.as_json, measured.document)
    return FITS
