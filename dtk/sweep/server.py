"""Passes a sweep file to a W&B server and runs its agent here, using W&B's library."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from diagnostics.contract.invocation import command
from dtk.console.output import print_line
from dtk.errors import DtkError
from dtk.extras import require
from dtk.launch.processes import importable
from dtk.record.tracker_process import base_url, has_key
from dtk.sweep.local import Job

PROJECT = "dtk"  # Default if the file names none, as of `tracker=wandb`.


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
