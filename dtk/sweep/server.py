"""Passes a sweep file to a W&B server, runs its agent here, and stores a report of the runs, using W&B's library."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import command
from diagnostics.report import markdown
from dtk.config.overrides import parse
from dtk.console.output import print_line
from dtk.errors import DtkError
from dtk.extras import require
from dtk.launch.processes import importable
from dtk.record.tracker_process import base_url, has_key
from dtk.sweep.folder import Sweep
from dtk.sweep.local import Job
from dtk.sweep.summary import comparison, last_trials

PROJECT = "dtk"  # Default if the file names none, as of `tracker=wandb`.
CURVES = ("loss", "validation_loss", "tokens_per_s")
BARS = ("tokens_per_s", "step_time_s", "peak_memory_bytes", "communicated_bytes_per_step")


def check_server(job: Job) -> None:
    """Make sure that W&B can be asked, and that its runs would tell it anything; DtkError if the package or the key is
    missing, or the file's runs are not tracked.
    """
    require("wandb", "--wandb", "wandb")
    if not has_key(base_url()):
        why = f"neither WANDB_API_KEY nor the netrc file has one for {base_url()}"
        raise DtkError("--wandb needs a key", why, f"type {command('login', name='wandb')}, or leave --wandb out")
    if "tracker=wandb" not in (*job.file.fixed, *job.extra):
        raise DtkError(f"{job.file.path}: the server would see nothing of its runs", fix="add tracker=wandb to command")
    if job.repeats > 1:
        raise DtkError(f"repeats={job.repeats} cannot be handed to W&B", fix="leave --wandb out for repeats")


def hand_over(job: Job, count: int | None) -> int:
    """Run a new sweep at the server to its end; return 0, or 1 for any failure; DtkError if the server refuses it."""
    import wandb

    content = {**job.file.content, "command": [*job.file.content["command"], *job.extra]}
    project = str(content.get("project", PROJECT))
    try:
        identity = wandb.sweep(content, entity=content.get("entity"), project=project)
        sweep = f"{content.get('entity') or wandb.Api().default_entity}/{project}/{identity}"
    except Exception as error:  # Its own, those of the server and of the network alike.
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise DtkError(f"{base_url()} did not accept the sweep", why) from error
    options = ["--forward-signals", *(["--count", str(count)] if count is not None else [])]
    # The agent's `python -m dtk.run` uses this interpreter and this dtk.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = importable({**os.environ, "PATH": programs})
    process = subprocess.Popen([sys.executable, "-m", "wandb", "agent", *options, sweep], env=environment)
    code = None
    while code is None:
        with suppress(KeyboardInterrupt):  # The agent received it too, and lets its run write a checkpoint.
            code = process.wait()
    print_line(f"another agent, here or elsewhere: {command('agent', sweep, name='wandb')}")
    return 1 if code else 0


def save(sweep: Sweep, project: str, entity: str | None, axis: str) -> str:
    """Save a report of the runs side by side and return its address: the comparison as text, curves, final figures, and
    what differs; DtkError if the library is not installed, or the server rejected the report.
    """
    require("wandb_workspaces", "a report of W&B", "wandb-reports")
    import wandb
    from wandb_workspaces.reports import v2 as reports

    trials = last_trials(sweep)
    names = [trial.run.name for trial in trials if trial.run is not None]
    compared = comparison(trials)
    text = markdown.render(compared) if compared is not None else f"# {sweep.about.id}\n"
    panels: list[Any] = [reports.LinePlot(title=name, x=axis, y=[name]) for name in CURVES]
    panels += [reports.BarPlot(title=name, metrics=[reports.SummaryMetric(name)]) for name in BARS]
    panels.append(reports.RunComparer(diff_only="split"))
    try:
        place = {"project": project, "entity": entity or wandb.Api().default_entity}
        runs = reports.Runset(**place, name=sweep.about.id, filters=f"Name in {names}", groupby=_varied(sweep))
        blocks = [reports.MarkdownBlock(text), reports.PanelGrid(runsets=[runs], panels=panels)]
        report = reports.Report(**place, title=f"{sweep.about.id}: side by side", blocks=blocks, width="fluid")
        return str(report.save().url)
    except Exception as error:  # The library raises its own, those of the server and of the network alike.
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DtkError("W&B did not accept the report", why, "try again; the runs are there") from error


def _varied(sweep: Sweep) -> list[str]:
    """Return the keys that distinguish the points, as W&B names them, if each point has several runs to group."""
    if sweep.about.repeats == 1:
        return []
    keys = dict.fromkeys(parse(word).key_or_group for point in sweep.points for word in point.name.split())
    return [
        f"config.{key}.name" if isinstance(sweep.points[0].config.get(key), dict) else f"config.{key}" for key in keys
    ]
