"""Prepares a job before its launch: composes, places and checks it, and describes it in a run folder. Imports of a
later phase are local to it, so that `--cfg` and a rejected job respond immediately.
"""

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.secrets import masked
from dtk.config.batch import fill_degrees, settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import compose
from dtk.config.instantiate import check_targets
from dtk.config.placement import Placement, check_port, cpu_ranks, is_remote, place, remote_placement
from dtk.config.resume import Resumed, check_continuable, earlier_argv, refuse_other_data, rerun, resume
from dtk.config.trust import refuse_masked
from dtk.errors import DtkError
from dtk.launch.inputs import settle_epochs

if TYPE_CHECKING:
    from dtk.nccl.render import Rendered


def compose_point(
    overrides: list[str], config_dir: Path | None, earlier: Path | None = None, *, trust: bool = False
) -> Resumed:
    """Compose one point from its overrides, and check what does not depend on the number of ranks.

    `earlier` is a run folder whose configuration is used instead of conf/; `trust` accepts one that others own or can
    write to.

    Raises:
        DtkError: an override or a file is invalid.
    """
    if earlier is not None:
        return rerun(earlier, overrides, config_dir, trust=trust)
    composed = compose(overrides, config_dir, traced=True)
    return resume(composed, config_dir, trust=trust) if composed.config.resume else Resumed(composed, None, 0)


def print_configuration(point: Resumed) -> None:
    """Print the configuration of a point, for `--cfg`."""
    import yaml

    print(yaml.safe_dump(masked(point.composed.plain), sort_keys=False), end="")


def place_point(point: Resumed) -> tuple[Resumed, Placement]:
    """Resolve ranks and batch of a run, and check everything that does not need the data."""
    config = point.composed.config
    launcher = config.launcher
    if is_remote(launcher):
        placement = remote_placement(config)
        return settle_point(point, placement), placement
    placement = place(launcher, config.strategy, cuda_devices(launcher.device), on_cpu=cpu_ranks(config))
    point = settle_point(point, placement)
    check_port(launcher.master_port)
    return point, placement


def settle_point(point: Resumed, placement: Placement) -> Resumed:
    """Divide the batch over the ranks, and check every rule that does not need the data."""
    from dtk.nccl.render import check_preset
    from dtk.record.manifest import network

    refuse_masked(point.composed.plain)
    composed = fill_degrees(point.composed, placement.world_size)
    place = (placement.world_size, placement.device, placement.cuda_devices)
    check_ranks(composed.config, *place)
    composed = settle_epochs(settle(composed, placement.world_size))
    if point.paths is not None and composed.config.train.epochs is not None:
        check_continuable(point.paths, composed.config.train.steps)
    # A run folder holds NCCL's variables without the reasons for them.
    config = replace(composed.config, nccl=replace(composed.config.nccl, about={}))
    check(config, *place)
    interfaces = None if is_remote(config.launcher) else network()["interfaces"]
    check_preset(config.nccl, placement.backend, os.environ, interfaces)
    check_targets(config)
    return replace(point, composed=replace(composed, config=config))


def make_folder(point: Resumed, data: dict[str, Any], placement: Placement, launcher: str) -> RunPaths:
    """Create the run folder, or reuse that of a resumed run, and describe the run in it."""
    from dtk.nccl.render import render
    from dtk.plan.stored import keep_plan
    from dtk.record.run_folder import create, describe, name_run

    composed, config = point.composed, point.composed.config
    paths = point.paths or create(Path(config.runs_folder) / name_run(config, placement.world_size))
    if point.earlier is not None:
        from dtk.runs.code import warn_of_other_inputs

        warn_of_other_inputs(point.earlier, config, data, placement.world_size)
    try:
        nccl = render(config.nccl, os.environ, paths.root)
        about = manifest_of(point, paths, data, placement, launcher, nccl)
        describe(paths, about, composed.plain, composed.overrides, composed.origins)
    except (DtkError, KeyboardInterrupt):
        if point.paths is None:
            shutil.rmtree(paths.root, ignore_errors=True)
        raise
    keep_plan(paths, composed, placement)
    return paths


def manifest_of(
    point: Resumed,
    paths: RunPaths,
    data: dict[str, Any] | None,
    placement: Placement,
    launcher: str,
    nccl: "Rendered",
) -> dict[str, Any]:
    """Return the content of manifest.json for a point, with its data and the runs that it continues from; DtkError if
    the run is resumed with different data.
    """
    from dtk.record.manifest import manifest

    if point.paths is not None:
        refuse_other_data(paths, data or {})
    about = manifest(point.composed.config, paths.root.name, placement, launcher, asdict(nccl))
    about["earlier_argv"] = [] if point.paths is None else earlier_argv(paths)
    if data is not None:
        about["data"] = data
    if point.earlier is not None:
        about["rerun_of"] = point.earlier.name
    return about


def cuda_devices(device: str) -> int:
    """Return the number of CUDA devices, without initializing CUDA in the parent."""
    if device == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()
