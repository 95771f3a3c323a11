"""`dtk preflight`: options, output and exit code. `--help` does not import torch."""

import argparse
import os
from pathlib import Path

from diagnostics.contract.formatting import command
from dtk.console import options, output
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import Errors
from dtk.extras import require_training

_errors = Errors(__file__)
ENDS, WOULD_HANG = 0, 1  # Exit codes.
PAGE = Path("dtk-preflight.html")
VALUES = {"page": PAGE, "ranks": ("auto", "all", "classes")}


def run(arguments: argparse.Namespace) -> int:
    """Simulate a job, print the report and write the page; DtkError if the job or an option cannot be used."""
    _check(arguments)
    # Ranks are simulated on the CPU, so a script that looks for a GPU must not find one.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from dtk.preflight.report import as_json, document
    from dtk.preflight.run import Request, preflight

    output.check_page(arguments.html, PAGE)
    limit_s = arguments.rank_timeout_s
    request = options.taken(Request, arguments, script_arguments=tuple(arguments.wrapped), limit_s=limit_s)
    with Progress(after_s=AFTER_S) as progress:
        prediction = preflight(request, progress.show)
    output.hand_over(arguments, prediction, as_json, document, brief=not arguments.verbose, page=True)
    return ENDS if prediction.verdict.ends else WOULD_HANG


def _check(arguments: argparse.Namespace) -> None:
    require_training("dtk preflight needs")
    script: Path | None = arguments.script
    if script is None:
        example = command("preflight", "--script", "train.py")
        _errors.refuse({"arguments": arguments.wrapped, "no_steps": arguments.steps == 0}, example=example)
        return
    rules = {"overrides": arguments.overrides, "no_script": not script.is_file()}
    _errors.refuse(rules, overrides=arguments.overrides, script=script)
    try:
        compile(script.read_bytes(), script, "exec")
    except (SyntaxError, ValueError) as error:
        raise _errors("syntax", script=script, why=error) from error
    _errors.refuse({"what_if": arguments.what_if, "no_ranks": arguments.world_size is None})
