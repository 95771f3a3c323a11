"""`dtk preflight`: options, where the report goes, exit code. Simulates nothing itself; `--help` needs no torch."""

import argparse
import os
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import command
from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import above_zero, add_config_dir, add_json, add_number, add_page, taken, whole
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

ENDS, WOULD_HANG = 0, 1
MOST_S = 86_400.0
RANKS = ("auto", "all", "classes")
PAGE = Path("dtk-preflight.html")

DESCRIPTION = """\
Check before the launch whether every rank would finish. Each rank is simulated on this machine and takes the
same path as in the run; all its calls to process groups are recorded and matched with those of the others.
Names the first point at which ranks diverge, with the causes and the report of `dtk diagnose`.
Needs no GPU, no data and no network, and writes no file but the page of --html."""

EXAMPLES = """\
examples:
  dtk preflight strategy=fsdp model=gpt2_tiny launcher.world_size=8
  dtk preflight strategy=hsdp model=gpt2 launcher.world_size=4096 --ranks classes
  dtk preflight strategy=ddp model=gpt2_tiny --what-if     which mishaps on one rank would hang this job
  dtk preflight --script train.py --world-size 8 -- --epochs 1
  dtk preflight fault=rank0_state_dict --html report.html  a page to open or to send
  dtk run preflight=on strategy=fsdp model=gpt2            before every launch

--ranks auto simulates every rank of up to 256, above that one of each class: first, last and middle of the
job, of a node and of each mesh dimension. A script runs as under torchrun, on the CPU and with its real data;
what it writes is discarded.

exit code: 0 every rank finishes; 1 the job would hang or a rank would fail; 2 wrong input (one line).
Guide, semantics and limits: docs/preflight.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand; the script's own arguments behind `--` come as `wrapped`."""
    parser = commands.add_parser(
        "preflight",
        help="before a launch: would every rank finish, or where would they hang",
        usage="dtk preflight [KEY=VALUE ...] [options]\n"
        "       dtk preflight --script FILE --world-size N [-- ARGUMENTS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for dtk run")
    parser.add_argument("--script", type=Path, metavar="FILE", help="a training script instead of a job of dtk")
    add_number(parser, "--world-size", whole(1, 1 << 20), "ranks of the script's job, over all nodes")
    add_number(parser, "--local-size", whole(1, 1 << 20), "ranks per node: gives LOCAL_RANK", 8)
    parser.add_argument("--ranks", choices=RANKS, default="auto", metavar="R", help=f"one of {', '.join(RANKS)}")
    add_number(parser, "--steps", whole(0, 10_000), "optimizer steps; 0 = to the end of a script", 2)
    parser.add_argument("--what-if", action="store_true", help="a table of mishaps on one rank: which hang this job")
    stuck = "a simulated rank that takes longer counts as stuck"
    add_number(parser, "--rank-timeout-s", above_zero(MOST_S), stuck, 60.0, "S")
    add_config_dir(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="the fault tree, all evidence, all findings")
    add_json(parser)
    parser.add_argument("--markdown", action="store_true", help="the report as Markdown")
    add_page(parser, PAGE)
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
    request = taken(Request, arguments, script_arguments=tuple(arguments.wrapped), limit_s=limit_s)
    progress = Progress(after_s=AFTER_S)
    try:
        found = preflight(request, progress.say)
    finally:
        progress.end()
    report_forms.hand_over(arguments, found, as_json, document, brief=not arguments.verbose, page=True)
    return ENDS if found.verdict.ends else WOULD_HANG


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
        raise DtkError(
            f"{arguments.overrides[0]!r} is for a job of dtk",
            "a script has a configuration of its own",
            "put it after --",
        )
    if not script.is_file():
        raise DtkError(f"there is no script {script}")
    if arguments.what_if:
        raise DtkError("--what-if needs a job of dtk", "what goes wrong is put into its training loop")
    if arguments.world_size is None:
        raise DtkError("a script does not say how many ranks it has", fix="add --world-size 8")
