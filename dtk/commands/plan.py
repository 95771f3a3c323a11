"""`dtk plan`: options, output and exit code. `--help` does not import torch."""

import argparse
import sys
from pathlib import Path

from dtk.console import output
from dtk.console import report as report_forms
from dtk.console.options import taken
from dtk.errors import DtkError
from dtk.extras import require_training

FITS, TOO_LARGE = 0, 1  # Exit codes.
PAGE = Path("plan.html")
_OF_A_PLAN = ("compare", "search", "max_model", "max_batch", "memory_table", "world_size", "html")
VALUES = {"engines": ("auto", "closed_form", "simulated", "both")}


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, write.

    Raises:
        DtkError: the job, the hardware or an option cannot be used.
    """
    require_training("dtk plan needs")
    if arguments.calibrate:
        given = ("--" + name.replace("_", "-") for name in _OF_A_PLAN if getattr(arguments, name))
        if unused := [*arguments.overrides, *given]:
            why = f"{unused[0]} has no effect on it"
            raise DtkError("--calibrate measures this machine", why, "drop it")
        from dtk.bench import calibrate

        hardware = calibrate.calibrate(say=lambda line: print(f"dtk: {line}", file=sys.stderr, flush=True))
        report_forms.hand_over(arguments, hardware, calibrate.as_json, calibrate.document)
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
