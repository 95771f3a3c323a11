"""`dtk run` as one rank of torchrun or Slurm: rank 0 composes and creates the run folder, all ranks train."""

import argparse
import os

from dtk.config.placement import is_remote
from dtk.errors import DtkError
from dtk.launch import cluster
from dtk.launch.console import Console, banner
from dtk.launch.prepare import check_parts, compose_point, make_folder, settle_point
from dtk.rank.job import started_by
from dtk.record.run_folder import begin
from dtk.start.point import preflight_point


def join_job(arguments: argparse.Namespace) -> int:
    """Join as one rank of torchrun or Slurm: rank 0 composes and creates the run folder, all ranks train."""
    launcher = str(started_by(os.environ))
    return cluster.join(launcher, lambda: _decide(arguments, launcher))


def _decide(arguments: argparse.Namespace, launcher: str) -> cluster.Shared:
    """Return rank 0's decision for all ranks of torchrun or Slurm, including the run folder."""
    point = compose_point(arguments.overrides, arguments.config_dir, arguments.rerun, trust=arguments.trust)
    section = point.composed.config.launcher
    if is_remote(section):
        raise DtkError(f"launcher={section.name} submits a job", f"but this is already a rank of {launcher}", "drop it")
    placement = cluster.place_here(point.composed.config, launcher)
    point = settle_point(point, placement)
    config = point.composed.config
    data = check_parts(config, placement.world_size)
    if would_hang := preflight_point(point.composed, placement):
        print(would_hang, end="", flush=True)
        raise DtkError("this job would hang", "preflight=on does not launch it", "fix what the report above names")
    paths = make_folder(point, data, placement, launcher)
    begin(paths, point.attempt)
    banner(Console(), config, paths, placement, point.attempt)
    return cluster.Shared(str(paths.root), point.composed.plain, placement.device, placement.backend, point.attempt)
