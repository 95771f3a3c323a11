"""Freezes a composed run for other machines, renders its script and submits it, or with --dry-run prints it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import read_record
from dtk.config.placement import Placement
from dtk.config.resume import Resumed
from dtk.console.output import put
from dtk.errors import DtkError
from dtk.launch.inputs import check_parts
from dtk.launch.prepare import manifest_of
from dtk.launch.remote import submit
from dtk.launch.remote.submission import Submission, freeze
from dtk.nccl.render import Rendered

UNMOUNTED = "/tmp/dtk-runs"  # Run folders of a SkyPilot job without a bucket, on the first node's disk.


def hand_over(
    point: Resumed, placement: Placement, dry_run: bool, opened: Callable[[RunPaths], None] | None = None
) -> int:
    """Submit a run, or print it; DtkError, without a run folder, if it is invalid or the cluster rejects it."""
    from dtk.plan.stored import planned
    from dtk.record.run_folder import name_run

    launcher = point.composed.config.launcher
    program = "" if dry_run else submit.check_program(launcher.name)
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
    text = submit.render(job)
    if dry_run:
        put(text)
        return 0
    if launcher.name == "slurm":
        return _to_slurm(point, job, text, program, opened)
    if launcher.name == "skypilot":
        return submit.submit_skypilot(job, text, program)
    print(submit.ask([program, "create", "-f", "-"], "Kubernetes", text).strip())
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
    from dtk.record.run_folder import writing

    root, is_new = job.paths.root, point.paths is None
    if not is_new:
        submit.check_not_queued(root.name)
    # Previous files of a resumed run: a rejected job changes nothing.
    frozen_files = [] if is_new else [root / name for name in (*job.files, job.paths.status.name)]
    before = {path: read_record(path) for path in frozen_files if path.is_file()}
    try:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            for name, content in job.files.items():
                replace_file(root / name, content)
        number = submit.submit_slurm(job, text, program)
    except (DtkError, KeyboardInterrupt):
        if is_new:
            shutil.rmtree(root, ignore_errors=True)
        for path, record in before.items():
            path.write_bytes(record)
        raise
    if opened is not None:
        opened(job.paths)
    submit.print_submitted(job.paths, number)
    return 0
