"""`dtk tune`: options, output and exit code. `--help` does not import torch."""

import argparse
from functools import partial

from dtk.console import output
from dtk.console.options import Parser, add_command, read_options, taken
from dtk.console.progress import Progress
from dtk.errors import INTERRUPTED, DtkError
from dtk.extras import require_training

DONE, FAILED = 0, 1  # Exit codes.


def add_more(tune: Parser) -> None:
    """Add the topics of `tune`."""
    topics, every = tune.add_subparsers(title="topics", metavar="TOPIC"), read_options(__file__)
    table = every["topic"]
    for name, texts in every["topics"].items():
        topic = {**table, "help": texts["line"], "usage": f"dtk tune {name} [KEY=VALUE ...] [options]", "text": "tune"}
        left_out = "--max" if "values" in texts else "--values"
        topic["options"] = {key: option for key, option in table["options"].items() if key != left_out}
        add_command(topics, name, topic, partial(run_topic, name), topic=name, **texts)


def run_topic(topic: str, arguments: argparse.Namespace) -> int:
    """Search for the best value and print the report; DtkError if the job, an option or a value cannot be used."""
    require_training("dtk tune needs")
    from dtk.launch.processes import ended_by_sigterm
    from dtk.tune.make import Request, make
    from dtk.tune.model import as_json, document

    text: str | None = getattr(arguments, "values", None)
    values = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise DtkError(f"--values {text!r} has an empty entry", fix="separate values by single commas")
    request = taken(Request, arguments, topic=topic, values=values, most=getattr(arguments, "max", None))
    progress = Progress()
    with ended_by_sigterm():
        report = make(request, progress.line)
        output.hand_over(arguments, report, as_json, document)
    if report.interrupted:
        return INTERRUPTED
    return DONE if report.measured else FAILED
