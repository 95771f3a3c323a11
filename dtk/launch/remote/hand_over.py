"""Freezes a composed run for other machines, renders its script and submits it with the cluster's own program (sbatch,
kubectl or sky), or with --dry-run prints it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.contract.files import read_record
from diagnostics.contract.formatting import command, typed
from dtk.config.placement import Placement
from dtk.config.resume import Resumed
from dtk.console.output import put
from dtk.errors import DtkError, refused
from dtk.launch.prepare import check_parts, manifest_of
from dtk.launch.remote import kubernetes, skypilot, slurm
from dtk.launch.remote.submission import Submission, freeze
from dtk.nccl.render import Rendered
from dtk.record.run_folder import name_run, now, writing

UNMOUNTED = "/tmp/dtk-runs"  # Run folders of a SkyPilot job without a bucket, on the first node's disk.
SCRIPT = "job.sbatch"  # Name of the batch script in the run folder.
TIMEOUT_S = 120.0  # Chosen: sbatch and kubectl answer in seconds, a busy controller within a minute.
PROGRAMS = {"slurm": "sbatch", "kubernetes": "kubectl", "skypilot": "sky"}


def hand_over(
    point: Resumed, placement: Placement, dry_run: bool, opened: Callable[[RunPaths], None] | None = None
) -> int:
    """Submit a run, or print it; DtkError, without a run folder, if it is invalid or the cluster rejects it."""
    from dtk.plan.job import planned

    launcher = point.composed.config.launcher
    program = "" if dry_run else check_program(launcher.name)
    if launcher.name != "slurm" and point.paths is not None:
        what = f"launcher={launcher.name} cannot continue with a run folder of this machine"
        fix = "submit the manifest of that run again: it continues from the last checkpoint"
        raise DtkError(what, "its run folders are on the cluster", fix)
    if launcher.name == "slurm":
        data: dict[str, Any] | None = check_parts(point.composed.config, placement.world_size)
    else:
        point, data = _moved(point), None
    composed = point.composed
    name = name_run(composed.config, placement.world_size)
    paths = point.paths or RunPaths(Path(composed.config.runs_folder) / name)
    # The first rank adds the variables that depend on its machine.
    nccl = Rendered(composed.config.nccl.name, {}, ())
    about = manifest_of(point, paths, data, placement, launcher.name, nccl)
    job = freeze(composed, paths, placement, point.attempt, about, planned(composed, placement))
    text = render(job)
    if dry_run:
        put(text)
        return 0
    if launcher.name == "slurm":
        return _to_slurm(point, job, text, program, opened)
    if launcher.name == "skypilot":
        return submit_skypilot(job, text, program)
    print(ask([program, "create", "-f", "-"], "Kubernetes", text).strip())
    where = f"on the claim {launcher.volume_claim}" if launcher.volume_claim else "lost with its pod"
    print(f"the run folder will be {job.paths.root}, {where}")
    return 0


def _moved(point: Resumed) -> Resumed:
    """Return the run with its folder moved to the job's mounted storage, unless it is already there."""
    config = point.composed.config
    launcher = config.launcher
    mounted = launcher.volume_path if launcher.name == "kubernetes" else launcher.bucket_path
    if launcher.name == "skypilot" and launcher.bucket is None:
        mounted = UNMOUNTED
    if PurePosixPath(mounted) in (PurePosixPath(config.runs_folder), *PurePosixPath(config.runs_folder).parents):
        return point
    return replace(point, composed=replace(point.composed, config=replace(config, runs_folder=mounted)))


def _to_slurm(
    point: Resumed, job: Submission, text: str, program: str, opened: Callable[[RunPaths], None] | None
) -> int:
    """Create the run folder, or reuse that of a resumed run, and submit."""
    from diagnostics.report.files import replace as replace_file

    root, is_new = job.paths.root, point.paths is None
    if not is_new:
        check_not_queued(root.name)
    # Previous files of a resumed run: a rejected job changes nothing.
    frozen_files = [] if is_new else [root / name for name in (*job.files, job.paths.status.name)]
    before = {path: read_record(path) for path in frozen_files if path.is_file()}
    try:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            for name, content in job.files.items():
                replace_file(root / name, content)
        number = submit_slurm(job, text, program)
    except (DtkError, KeyboardInterrupt):
        if is_new:
            shutil.rmtree(root, ignore_errors=True)
        for path, record in before.items():
            path.write_bytes(record)
        raise
    if opened is not None:
        opened(job.paths)
    print_submitted(job.paths, number)
    return 0


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
    """Check that Slurm has no other job of this run, which would overwrite its records; DtkError if it has one."""
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
    """Run a cluster's program with `given` as its input; return its output. DtkError with its error as one line."""
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
