"""Starts a prepared job: a preflight if requested, then the ranks of this machine, or a submission to a cluster."""

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths
from dtk.config.compose import Composed
from dtk.config.placement import Placement, is_remote
from dtk.config.resume import Resumed
from dtk.config.schema import CustomModelConfig
from dtk.errors import INTERRUPTED
from dtk.launch.prepare import make_folder

FAILED = 1  # Exit code if a preflight rejects the launch, as if a rank fails.


def run_point(
    point: Resumed, placement: Placement, opened: Callable[[RunPaths], None] | None = None, dry_run: bool = False
) -> int:
    """Start one run on this machine, or submit a job for others; return the exit code, see `dtk.run.main`.

    DtkError if data, tracker or runs folder cannot be used, or the cluster rejects the job.
    """
    with redirect_stdout(sys.stderr) if dry_run else nullcontext():
        would_hang = preflight_point(point.composed, placement)
    if would_hang:
        print(would_hang, end="", flush=True)
        return FAILED
    if is_remote(point.composed.config.launcher):
        from dtk.launch.remote.hand_over import hand_over

        return hand_over(point, placement, dry_run, opened)
    return _run_here(point, placement, opened, dry_run)


def _run_here(point: Resumed, placement: Placement, opened: Callable[[RunPaths], None] | None, dry_run: bool) -> int:
    """Run on this machine: `run_point` without remote launchers."""
    from dtk.launch.console import Console, banner, farewell
    from dtk.launch.local import launch
    from dtk.launch.prepare import check_parts
    from dtk.record.run_folder import name_run

    config = point.composed.config
    data = check_parts(config, placement.nproc)
    if dry_run:
        would_be = point.paths or RunPaths(Path(config.runs_folder) / name_run(config, placement.nproc))
        banner(Console(), config, would_be, placement, point.attempt)
        if isinstance(config.model, CustomModelConfig):
            from dtk.models.build import blocks_found

            if blocks := blocks_found(config):
                print(blocks)
        print("dry run: nothing was started" + ("" if point.paths else " and the run folder was not created"))
        return 0
    paths = make_folder(point, data, placement, "local")
    if opened is not None:
        opened(paths)
    console = Console()
    banner(console, config, paths, placement, point.attempt)
    gc.enable()
    try:
        status = launch(config, paths, placement, point.attempt, console)
        farewell(console, paths, status)
    except KeyboardInterrupt:  # The last lines were interrupted; the run is already closed.
        return INTERRUPTED
    return status.exit_code or 0


def preflight_point(composed: Composed, placement: Placement) -> str:
    """Return, with preflight=on, the report on a job that would hang; empty if it may be launched."""
    if composed.config.preflight == "off":
        return ""
    from dtk.console.output import rendered
    from dtk.preflight.report import answer, document
    from dtk.preflight.run import Request, preflight

    ranks, local_size = placement.world_size, placement.nproc
    request = Request(overrides=tuple(composed.overrides), world_size=ranks, local_size=local_size)
    prediction = preflight(request, composed=composed)
    if prediction.verdict.ends:
        print(f"preflight: {answer(prediction)}", flush=True)
        return ""
    return rendered(document(prediction, brief=True))
