"""`dtk plan`: options, output and exit code. `--help` does not import torch."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from dtk.console import output
from dtk.console.options import taken
from dtk.errors import DtkError
from dtk.extras import require_training

FITS, TOO_LARGE = 0, 1  # Exit codes.
PAGE = Path("plan.html")
VALUES = {"engines": ("auto", "closed_form", "simulated", "both")}


def run(arguments: argparse.Namespace) -> int:
    """Plan a job, print the report and write the page; DtkError if the job or an option cannot be used."""
    require_training("dtk plan needs")
    from dtk.plan.make import Request, make

    request = taken(Request, arguments, html=arguments.html is not None)
    if arguments.calibrate:
        given = (field.name for field in fields(Request) if getattr(request, field.name) not in (field.default, ()))
        if unused := [*request.overrides, *("--" + name.replace("_", "-") for name in given)]:
            why = f"{unused[0]} has no effect on it"
            raise DtkError("--calibrate measures this machine", why, "drop it")
        from dtk.bench import calibrate

        hardware = calibrate.calibrate(show=lambda line: print(f"dtk: {line}", file=sys.stderr, flush=True))
        output.hand_over(arguments, hardware, calibrate.as_json, calibrate.document)
        return FITS
    output.check_page(arguments.html, PAGE)
    from dtk.plan.model import as_json
    from dtk.plan.report import document

    report = make(request)
    output.hand_over(arguments, report, as_json, document, page=True)
    return TOO_LARGE if report.plan.fits is False else FITS
