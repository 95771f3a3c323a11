"""Prepares a job before its launch: composes, places and checks it, and describes it in a run folder. Imports of a
later phase are local to it, so that `--cfg` and a rejected job respond immediately.
"""

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.secrets import masked
from dtk.config.batch import fill_degrees, settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import Composed, compose
from dtk.config.instantiate import check_targets
from dtk.config.placement import Placement, check_port, cpu_ranks, is_remote, place, remote_placement
from dtk.config.resume import Resumed, check_continuable, earlier_argv, refuse_other_data, rerun, resume
from dtk.config.schema import Config, CustomModelConfig, CustomOptimizerConfig, DataConfig, GPTConfig
from dtk.config.trust import refuse_masked
from dtk.errors import DtkError
from dtk.extras import require
from dtk.nccl.render import Rendered, fill, render
from dtk.parallel import loopback
from dtk.record.flight import environment as flight_environment
from dtk.sharding.registry import NATIVE

if TYPE_CHECKING:
    from dtk.data.dataset import Dataset


_counted: "list[tuple[DataConfig, list[str], Dataset]]" = []
"""The dataset that `settle_epochs` has built, at most one, for reuse by `check_parts`: building it may take minutes."""


def rank_variables(
    config: Config, paths: RunPaths, here: Mapping[str, str] | None, *, threads: int = 0, one_machine: bool = False
) -> dict[str, str]:
    """Return the variables that the ranks need before they create a communicator; the user's values take precedence.

    `here` is the environment of the process that starts the ranks, or of the rank itself; None if they start elsewhere,
    where each adds what depends on its machine. With 0 `threads` each rank sets them itself. On `one_machine` loopback
    suffices. DtkError if the preset requires a key that is not set.
    """
    chosen = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if config.train.deterministic:
        chosen["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if here is None:
        filled = ((name, fill(config.nccl, name, text, paths.root)) for name, text in config.nccl.variables.items())
        return {**{name: value for name, value in filled if value is not None}, **chosen}
    interfaces = loopback.interface_variables() if one_machine else {}
    preset = render(config.nccl, here, paths.root).variables
    return {**chosen, **interfaces, **flight_environment(config.record, paths), **preset}


def compose_point(
    overrides: list[str], config_dir: Path | None, earlier: Path | None = None, *, trust: bool = False
) -> Resumed:
    """Compose one point from its overrides, and check what does not depend on the number of ranks.

    `earlier` is a run folder whose configuration is used instead of conf/; `trust` accepts one that others own or can
    write to. DtkError if an override or a file is invalid.
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
    from dtk.plan.job import keep_plan
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
    nccl: Rendered,
) -> dict[str, Any]:
    """Return the content of manifest.json for a point; DtkError if the run that it resumes had different data."""
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


def check_parts(config: Config, world_size: int) -> dict[str, Any]:
    """Check the folder for offloaded states, optimizer, tracker, weights and data; return the data's description.

    DtkError for the first part that cannot be used.
    """
    from dtk.data.build import check_dataset
    from dtk.record.trackers import check_tracker

    if package := config.strategy.traits.library or config.engine.removeprefix(NATIVE):
        typed = f"strategy={config.strategy.name}" if config.strategy.traits.library else f"engine={config.engine}"
        require(package, typed, package)
    check_tracker(config.tracker)
    if config.strategy.offload_folder is not None:
        from dtk.parallel.tiers import Swap

        Swap(config.strategy.offload_folder, [])  # Each rank reserves its space before its first step.
    if isinstance(config.optimizer, CustomOptimizerConfig):
        from dtk.train.optimizer import check_optimizer

        check_optimizer(config, world_size)
    if isinstance(config.model, GPTConfig) and config.model.pretrained:
        from dtk.models.hf import check_gpt2

        check_gpt2(config.model, config.model.pretrained)
    if isinstance(config.model, CustomModelConfig):
        from dtk.models.build import check_custom

        check_custom(config)
    # Only these can be refused, and the tasks' modules take half a second to import.
    if config.task._target_ is not None or isinstance(config.model, CustomModelConfig):
        from dtk.tasks.build import build_task

        build_task(config)
    dataset = _dataset(config)
    check_dataset(config, dataset)
    return dataset.describe()


def settle_epochs(composed: Composed) -> Composed:
    """Convert `train.epochs` to steps by counting the samples; DtkError if the data cannot be used."""
    config, train = composed.config, composed.config.train
    if train.epochs is None:
        return composed
    dataset = _dataset(config)
    _counted[:] = [(config.data, config.allow_targets, dataset)]
    steps = max(1, math.ceil(train.epochs * dataset.train_size / train.global_batch_size))
    return composed.with_train(steps=steps)


def _dataset(config: Config) -> "Dataset":
    from dtk.data.build import build_dataset

    if _counted and _counted[0][:2] == (config.data, config.allow_targets):
        return _counted.pop()[2]
    return build_dataset(config.data, config.allow_targets)
