"""Hands a sweep file to a W&B server and runs its agent here, by W&B's own commands. Imports no wandb."""

import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import yaml

from diagnostics.contract.invocation import command
from dtk.console.output import say
from dtk.errors import DtkError
from dtk.extras import install
from dtk.launch.processes import importable
from dtk.record.tracker_process import base_url, has_key
from dtk.sweep.local import Job, with_extra

PROJECT = "dtk"  # Where the file names none; the default of `tracker=wandb`.
_AGENT = re.compile(r"wandb agent (\S+)")
_MOST_LINES = 3  # Of what W&B says when it refuses a sweep.


def check_server(job: Job) -> None:
    """Make sure that W&B can be asked, and that its runs would tell it anything.

    Raises:
        DtkError: no package, no key, or a file whose runs are not tracked.
    """
    spec = find_spec("wandb")
    if spec is None or spec.origin is None:  # A mere folder of that name, such as the ./wandb of W&B itself.
        raise DtkError("--wandb needs the package wandb", fix=f"install it: {install('wandb')}")
    if not has_key(base_url()):
        why = f"neither WANDB_API_KEY nor the netrc file has one for {base_url()}"
        raise DtkError("--wandb needs a key", why, f"type {command('login', name='wandb')}, or leave --wandb out")
    if "tracker=wandb" not in (*job.file.fixed, *job.extra):
        raise DtkError(f"{job.file.path}: the server would see nothing of its runs", fix="add tracker=wandb to command")
    if job.repeats > 1:
        raise DtkError(f"repeats={job.repeats} cannot be handed to W&B", fix="leave --wandb out for repeats")


def hand_over(job: Job, count: int | None) -> int:
    """Create the sweep at the server and work for it until it ends; the agent's exit code, 1 for any failure.

    Args:
        job: checked.
        count: runs after which the agent ends; None = as the server says.

    Raises:
        DtkError: the server refused the sweep, or cannot be reached.
    """
    sweep = _create(job)
    options = ["--forward-signals", *(["--count", str(count)] if count is not None else [])]
    process = subprocess.Popen([*_WANDB, "agent", *options, sweep], env=_environment())
    code = None
    while code is None:
        with suppress(KeyboardInterrupt):  # The agent got it too, and lets its run write a checkpoint.
            code = process.wait()
    say(f"another agent, here or elsewhere: {command('agent', sweep, name='wandb')}")
    return 1 if code else 0


_WANDB = [sys.executable, "-m", "wandb"]


def _create(job: Job) -> str:
    """Create a sweep and return its path, entity/project/id."""
    content = with_extra(job)
    with tempfile.TemporaryDirectory(prefix="dtk-sweep-") as folder:
        path = Path(folder) / job.file.path.name
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        words = [*_WANDB, "sweep", "--project", str(content.get("project", PROJECT)), str(path)]
        done = subprocess.run(words, env=_environment(), capture_output=True, text=True, errors="replace")
    output = done.stdout + done.stderr
    sweep = _AGENT.search(output)
    if done.returncode or sweep is None:
        lines = [line.removeprefix("wandb: ") for line in output.splitlines() if line.strip()]
        raise DtkError(f"{base_url()} did not take the sweep", " ".join(lines[-_MOST_LINES:])[:500])
    sys.stderr.write(output)
    return sweep[1]


def _environment() -> dict[str, str]:
    """So that the agent's `python -m dtk.run` is this interpreter and this dtk."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return importable({**os.environ, "PATH": programs})
