"""Submits a rendered job with the cluster's own program: sbatch, kubectl or sky."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.contract.invocation import command, typed
from dtk.errors import DtkError, refused
from dtk.launch.remote import kubernetes, skypilot, slurm
from dtk.launch.remote.submission import Submission
from dtk.record.run_folder import now, writing

SCRIPT = "job.sbatch"  # Name of the batch script in the run folder.
TIMEOUT_S = 120.0  # Chosen: sbatch and kubectl answer in seconds, a busy controller within a minute.
PROGRAMS = {"slurm": "sbatch", "kubernetes": "kubectl", "skypilot": "sky"}


def render(job: Submission) -> str:
    """Render the job in its cluster's format; DtkError if the cluster would reject it."""
    if job.launcher.name == "slurm":
        return slurm.render(job, str(Path.cwd()))
    return kubernetes.render(job) if job.launcher.name == "kubernetes" else skypilot.render(job)


def check_program(launcher: str) -> str:
    """Return the path of the program that submits the job; DtkError if the program is not installed."""
    program = PROGRAMS[launcher]
    path = shutil.which(program)
    if path is None:
        fix = f"submit on a machine that has it, or add --dry-run to print the job for {program}"
        raise DtkError(f"launcher={launcher} needs {program}", "it is not on this machine's PATH", fix)
    return path


def submit_slurm(job: Submission, text: str, program: str) -> str:
    """Write the script into the run folder, which must exist, submit it, and return the job id; DtkError if the folder
    cannot be written, or Slurm rejects the job.
    """
    script, began = job.paths.root / SCRIPT, now()
    queued = Status("queued", attempt=job.attempt, started=began, updated=began, reason="submitted to Slurm")
    with writing(job.paths.root):
        (job.paths.root / "logs").mkdir(exist_ok=True)
        script.write_text(text, encoding="utf-8")
        # The job may start before sbatch returns, and its first rank then owns the status.
        write_json(job.paths.status, queued)
    answer = ask([program, "--parsable", str(script)], "Slurm", None)
    return answer.split(";")[0].strip()


def check_not_queued(run_id: str) -> None:
    """Check that Slurm has no other job of this run, which would overwrite its records; DtkError if Slurm has a pending
    or running job of this run.
    """
    program = shutil.which("squeue")
    if program is None:
        return
    try:
        number = ask([program, "--noheader", f"--name={run_id}", "--format=%i"], "Slurm", None).split()
    except DtkError:  # sbatch will report what is wrong with Slurm.
        return
    if number:
        raise DtkError(f"the run {run_id} is in Slurm as job {number[0]}", fix=f"wait for it, or scancel {number[0]}")


def submit_skypilot(job: Submission, text: str, program: str) -> int:
    """Launch the task with sky in this terminal, where sky asks before it incurs costs; return sky's exit code."""
    verb = ["jobs", "launch"] if job.launcher.use_spot else ["launch"]
    with tempfile.TemporaryDirectory(prefix="dtk-") as folder:
        task = Path(folder) / "task.yaml"
        task.write_text(text, encoding="utf-8")
        return subprocess.run([program, *verb, str(task)], check=False).returncode


def print_submitted(paths: RunPaths, number: str) -> None:
    """Print where to look next after the submission to Slurm."""
    log = paths.root / "logs" / slurm.LOG.replace("%j", number)
    print(f"submitted to Slurm as job {number}: squeue -j {number}; scancel {number} stops it, with a checkpoint")
    print(f"run: {typed(paths.root)}")
    print(f"log: {typed(log)}")
    print(f"next: {command('show', typed(paths.root))}", flush=True)


def ask(arguments: list[str], who: str, given: str | None) -> str:
    """Run a cluster's program with `given` as its standard input, and return its standard output; DtkError if it fails,
    with its error output as one line.
    """
    # Without what belongs to a job in which this process may be itself: sbatch would take it for options.
    prefixes = ("SLURM_", "SBATCH_EXPORT")
    environment = {k: value for k, value in os.environ.items() if k == "SLURM_CONF" or not k.startswith(prefixes)}
    try:
        with refused(f"cannot run {arguments[0]}"):
            done = subprocess.run(
                arguments, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
            )
    except subprocess.TimeoutExpired as error:
        why = "the job may have been accepted nevertheless"
        raise DtkError(f"{who} did not answer in {TIMEOUT_S:.0f} s", why) from error
    if done.returncode:
        why = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise DtkError(f"{who} refuses the job", why)
    sys.stderr.write(done.stderr)
    return done.stdout
