"""`dtk bench comm`: options, where the report goes, exit code. Measures nothing itself; `--help` needs no torch."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtk.bench.bandwidth import DTYPES, OPERATIONS, size_of, sizes
from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.help_text import show_help
from dtk.console.options import above_zero, add_config_dir, add_json, add_number, add_page, taken, whole
from dtk.console.progress import Progress
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError
from dtk.extras import import_torch, require_training

if TYPE_CHECKING:
    from dtk.bench.sides import Chosen
    from dtk.bench.spec import Spec
    from dtk.bench.team import Team

DONE, FAILED = 0, 1
PAGE = Path("dtk-bench-comm.html")
LEAST = "1K"
MOST = {"cpu": "16M", "cuda": "1G"}

DESCRIPTION = """\
Measure the collectives that training waits for, over message sizes, on the backend that a run would use here:
gloo with two ranks on CPUs, NCCL with one rank per GPU, or the ranks that torchrun or srun started.
Algorithm and bus bandwidth are those of nccl-tests; results are verified element by element."""

EXAMPLES = """\
examples:
  dtk bench comm                                       all operations, 1 KiB to 16 MiB (1 GiB on GPUs)
  dtk bench comm --op all_reduce,all_gather --max-size 64M --dtype bfloat16
  dtk bench comm launcher.nproc=4 launcher.device=cpu  four ranks over gloo
  dtk bench comm --html comm.html                      one page with a plot, both axes logarithmic
  dtk bench comm --ab auto low_memory                  two presets of conf/nccl in turns, ratio with interval
  dtk bench comm --ab auto tcp_ethernet nccl.interface=eth0
  torchrun --nnodes 2 --nproc-per-node 8 -m dtk bench comm    over nodes; rank 0 reports

Every figure is the median of --repeats, with a 95 % interval. Between presets the processes are fresh each time,
as NCCL reads its variables once, and launches go A B A B, so that what drifts over both cancels.

exit code: 0 measured; 1 a rank died, or a result was wrong; 2 wrong input (one line).
Definitions, method and how to read the table: docs/bench_comm.md"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add `bench` with its subcommand."""
    bench = commands.add_parser("bench", help="measure this machine: bench comm, how fast its collectives are")
    bench.set_defaults(command=lambda arguments: show_help(bench))
    topics = bench.add_subparsers(title="topics", metavar="TOPIC")
    parser = topics.add_parser(
        "comm",
        help="collectives over message sizes, and two presets against each other",
        usage="dtk bench comm [KEY=VALUE ...] [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of launcher and nccl, as for dtk run")
    parser.add_argument("--op", metavar="OP,...", help=f"default: {','.join(OPERATIONS)}")
    parser.add_argument("--min-size", default=LEAST, metavar="SIZE", help=f"bytes, or 64K, 8M, 1G (default: {LEAST})")
    most = ", ".join(f"{size} on {device}" for device, size in MOST.items())
    parser.add_argument("--max-size", metavar="SIZE", help=f"default: {most}")
    add_number(parser, "--factor", whole(2, 1024), "between sizes", 4)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32", metavar="T", help=", ".join(DTYPES))
    repeats = "figures per median (default: 7; with --ab 5 launches of each preset)"
    add_number(parser, "--repeats", whole(1, 1000), repeats)
    add_number(parser, "--calls", whole(1, 100_000), "back to back", 20)
    add_number(parser, "--warm-up", whole(0, 100_000), "calls", 5)
    left_out = "of measuring; larger sizes are left out beyond it"
    add_number(parser, "--seconds", above_zero(86_400), left_out, 30.0, "S")
    dead = "a rank that answers nothing for so long is dead"
    add_number(parser, "--timeout-s", above_zero(86_400), dead, 60.0, "S")
    parser.add_argument("--no-verify", action="store_true", help="do not check results")
    parser.add_argument("--ab", nargs=2, metavar=("PRESET_A", "PRESET_B"), help="two presets of the group nccl")
    add_config_dir(parser)
    add_json(parser)
    add_page(parser, PAGE)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Under torchrun and srun every rank comes here, and rank 0 does all that.

    Raises:
        DtkError: an option, an override or a preset cannot be used.
    """
    require_training("dtk bench comm needs")
    import_torch()
    from dtk.launch.cluster import started_by
    from dtk.launch.processes import ended_by_sigterm

    with ended_by_sigterm():
        launcher = started_by(os.environ)
        return _alone(arguments) if launcher is None else _joined(arguments, launcher)


def _joined(arguments: argparse.Namespace, launcher: str) -> int:
    """One rank of torchrun or Slurm."""
    from dtk.bench.team import Leader, follow_leader
    from dtk.launch.cluster import SHARE_TIMEOUT_S, adopt_slurm
    from dtk.parallel.context import meet

    if launcher == "slurm":
        os.environ.update(adopt_slurm(os.environ))
    store = meet(SHARE_TIMEOUT_S)
    if os.environ["RANK"] != "0":
        return follow_leader(store)
    team = Leader(store)
    code = USER_ERROR
    try:
        code = _measure(arguments, _chosen(arguments), team)
    finally:
        team.close(code)
    return code


def _alone(arguments: argparse.Namespace) -> int:
    """All ranks are ours."""
    from dtk.bench.team import Team

    chosen = _chosen(arguments)
    return _measure(arguments, chosen, Team(chosen.placement.nproc, chosen.placement.threads))


def _chosen(arguments: argparse.Namespace) -> "Chosen":
    from dtk.bench.sides import choose
    from dtk.launch.cluster import local_size, started_by

    if arguments.html is not None:
        output.check_page(arguments.html, PAGE)
    import torch

    given = None if started_by(os.environ) is None else local_size(os.environ)
    presets = arguments.ab or ()
    return choose(arguments.overrides, presets, arguments.config_dir, torch.cuda.device_count(), given)


def _measure(arguments: argparse.Namespace, chosen: "Chosen", team: "Team") -> int:
    from dtk.bench.measure import STOPPED, measure
    from dtk.bench.model import as_json
    from dtk.bench.report import document

    spec = _spec(arguments, chosen)
    progress = Progress()
    repeats = arguments.repeats or (5 if arguments.ab else 7)
    report = measure(team, spec, chosen.sides, repeats, progress.say)
    progress.end()
    if not report.results:
        arguments.html = None
    if report.results or arguments.json:
        report_forms.hand_over(arguments, report, as_json, document, page=True)
    if report.failure:
        print(f"dtk: {report.failure}", file=sys.stderr)
        return INTERRUPTED if report.failure == STOPPED else FAILED
    return FAILED if report.wrong else DONE


def _spec(arguments: argparse.Namespace, chosen: "Chosen") -> "Spec":
    """Return the specification that all launches share."""
    from dtk.bench.spec import Spec

    device, backend = chosen.placement.device, chosen.placement.backend
    least, most = size_of(arguments.min_size), size_of(arguments.max_size or MOST[device])
    asked = {"operations": _operations(arguments.op), "sizes_bytes": tuple(sizes(least, most, arguments.factor))}
    verify = not arguments.no_verify
    return taken(Spec, arguments, **asked, device=device, backend=backend, passes=0, verify=verify)


def _operations(text: str | None) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    if text is None:
        return tuple(OPERATIONS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in OPERATIONS:
            from dtk.config.suggest import did_you_mean

            known = f"operations: {', '.join(OPERATIONS)}"
            raise DtkError(f"there is no operation {name!r}", fix=did_you_mean(name, OPERATIONS) or known)
    return tuple(dict.fromkeys(names))
