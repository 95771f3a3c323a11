"""`dtk tune`: options, where the report goes, exit code. Runs nothing itself; `--help` needs no torch."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.contract.files import table_beside
from dtk.console import report as report_forms
from dtk.console.help_text import show_help
from dtk.console.options import above_zero, add_config_dir, add_json, add_number, taken, whole
from dtk.console.progress import Progress
from dtk.errors import INTERRUPTED, DtkError
from dtk.extras import require_training

DONE, FAILED = 0, 1  # Exit codes.
STEPS, REPEATS, LIMIT_S = 10, 3, 1800.0  # Chosen: three repeats give an interval; half an hour is a coffee break.


@dataclass(frozen=True, slots=True)
class Topic:
    """What can be tuned."""

    line: str
    """What it is, in the list of topics."""
    about: str
    """What the command does."""
    example: str
    """Arguments."""
    values: str = ""
    """An example of values of one's own, where they can be given."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add `tune` with its topics."""
    tune = commands.add_parser("tune", help="find the fastest micro-batch, preset, bucket size or wrapping here")
    tune.set_defaults(command=lambda arguments: show_help(tune))
    topics = tune.add_subparsers(title="topics", metavar="TOPIC")
    for name, texts in table_beside(__file__).items():
        _add_topic(topics, name, Topic(**texts))


def _add_topic(topics: "argparse._SubParsersAction[Any]", name: str, topic: Topic) -> None:
    parser = topics.add_parser(
        name,
        text="tune",
        values={"topic": name, "about": topic.about, "example": topic.example},
        help=topic.line,
        usage=f"dtk tune {name} [KEY=VALUE ...] [options]",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="the job, as for dtk run")
    if topic.values:
        parser.add_argument("--values", metavar="V,V,...", help=f"try these, such as {topic.values}")
    else:
        add_number(parser, "--max", whole(1, 1 << 30), "try none above N")
    repeats = "of every candidate; an interval needs 3, and 6 for one that assumes nothing"
    add_number(parser, "--repeats", whole(1, 1000), repeats, REPEATS)
    steps = "of a probe, of which the first four do not count"
    add_number(parser, "--steps", whole(2, 1_000_000), steps, STEPS)
    add_number(parser, "--limit-s", above_zero(1e7), "no probe starts after this", LIMIT_S, "S")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders of the probes in DIR")
    add_config_dir(parser)
    add_json(parser)
    parser.set_defaults(command=lambda arguments: run(name, arguments), stopped="before the first probe")


def run(topic: str, arguments: argparse.Namespace) -> int:
    """Search and print.

    Raises:
        DtkError: the job, an option or a value cannot be used.
    """
    require_training("dtk tune needs")
    from dtk.launch.processes import ended_by_sigterm
    from dtk.tune.make import Request, make
    from dtk.tune.model import as_json
    from dtk.tune.report import document

    text: str | None = getattr(arguments, "values", None)
    values = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise DtkError(f"--values {text!r} has an empty place", fix="separate values by single commas")
    request = taken(Request, arguments, topic=topic, values=values, most=getattr(arguments, "max", None))
    progress = Progress()
    with ended_by_sigterm():
        report = make(request, progress.line)
    report_forms.hand_over(arguments, report, as_json, document)
    if report.interrupted:
        return INTERRUPTED
    return DONE if report.measured else FAILED
