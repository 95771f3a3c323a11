"""`dtk preflight`: options, output and exit code. `--help` does not import torch."""

import argparse
import os
from pathlib import Path

from diagnostics.contract.invocation import command
from dtk.console import options, output, report as report_forms
from dtk.console.progress import AFTER_S, Progress
from dtk.errors import DtkError
from dtk.extras import require_training

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
        prediction = preflight(request, progress.say)
    report_forms.hand_over(arguments, prediction, as_json, document, brief=not arguments.verbose, page=True)
    return ENDS if prediction.verdict.ends else WOULD_HANG


def _check(arguments: argparse.Namespace) -> None:
    require_training("dtk preflight needs")
    script: Path | None = arguments.script
    if script is None:
        if arguments.wrapped:
            raise DtkError("arguments after -- belong to a script", fix=command("preflight", "--script", "train.py"))
        if arguments.steps == 0:
            raise DtkError("--steps 0 is for scripts", "a dtk job would be simulated to its last step")
        return
    if arguments.overrides:
        what = f"{arguments.overrides[0]!r} applies to dtk jobs"
        raise DtkError(what, "a script has its own configuration", "put it after --")
    if not script.is_file():
        raise DtkError(f"there is no script {script}", fix="name a Python file: --script train.py --world-size 8")
    try:
        compile(script.read_bytes(), script, "exec")
    except (SyntaxError, ValueError) as error:
        raise DtkError(f"{script} is not valid Python", str(error), "name the script that torchrun starts") from error
    if arguments.what_if:
        raise DtkError("--what-if needs a dtk job", "failures are injected into dtk's training loop")
    if arguments.world_size is None:
        raise DtkError("a script does not declare its number of ranks", fix="add --world-size 8")
