"""The job to plan: composed and checked as in `dtk run`, without this machine's ports or data."""

import dataclasses
from pathlib import Path
from typing import Literal

from dtk.config.batch import fill_degrees, settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import Composed, compose
from dtk.config.instantiate import check_targets
from dtk.config.limits import limits
from dtk.config.placement import cpu_ranks, remote_placement
from dtk.config.resume import resume
from dtk.config.schema import Config, LauncherConfig, RemoteLauncher, TrainConfig
from dtk.errors import DtkError


def planned_job(
    overrides: list[str], config_dir: Path | None = None, world_size: int | None = None, devices: int | None = None
) -> Composed:
    """Compose a job, check it for `world_size` ranks, and divide the batch over them.

    Without `world_size`, `launcher.world_size` or the ranks that `dtk run` would start count; without `devices`, those
    of this machine.

    Returns:
        The job with `train.micro_batch_size` and `launcher.world_size` set. A default global batch that is not
        divisible by the ranks becomes one sample per rank, which is added to the overrides.

    Raises:
        DtkError: the job cannot be composed, its mesh or batch does not fit the ranks, or it violates a rule.
    """
    composed = compose(overrides, config_dir)
    if composed.config.resume:
        composed = resume(composed, config_dir).composed
    ranks = ranks_of(composed.config, devices) if world_size is None else world_size
    check_world_size(ranks, f"world_size={ranks}")
    composed = fill_degrees(composed, ranks)
    train = composed.config.train
    chosen = any(text.lstrip("+").startswith("train.global_batch_size=") for text in composed.overrides)
    if train.global_batch_size == TrainConfig().global_batch_size and not (chosen or composed.config.resume):
        plan = composed.config.batch_plan(ranks)
        if not plan.is_whole:  # The default batch is meant for a laptop, so it grows with the ranks.
            grown = dataclasses.replace(train, global_batch_size=plan.dp_size * max(1, train.micro_batch_size))
            overrides = [*composed.overrides, f"train.global_batch_size={grown.global_batch_size}"]
            config = dataclasses.replace(composed.config, train=grown)
            composed = dataclasses.replace(composed, config=config, overrides=overrides)
    return settled_job(composed, ranks)


def settled_job(composed: Composed, world_size: int) -> Composed:
    """Check a composed job for another number of ranks and divide its batch.

    `train.micro_batch_size=0` is chosen here. DtkError if the job violates a rule with this many ranks.
    """
    launcher = dataclasses.replace(composed.config.launcher, world_size=world_size)
    config = dataclasses.replace(composed.config, launcher=launcher)
    device = "cpu" if launcher.device == "cpu" else "cuda"
    devices = 0 if device == "cpu" else max(2, world_size)  # 2 selects strategy dp.
    check_ranks(config, world_size, device, devices)
    job = settle(dataclasses.replace(composed, config=config), world_size)
    check(job.config, world_size, device, devices)
    check_targets(job.config)
    return job


def ranks_of(config: Config, devices: int | None = None) -> int:
    """Return the ranks over all nodes: as requested, else the number that `dtk run` would start on one machine.

    Without `devices`, those of this machine count. DtkError if the requested number is out of range.
    """
    launcher: LauncherConfig = config.launcher
    if launcher.world_size is None and isinstance(launcher, RemoteLauncher):
        return launcher.nodes * remote_placement(config).nproc
    key = "nproc" if launcher.world_size is None else "world_size"
    ranks: int | Literal["auto"] = getattr(launcher, key)
    if ranks != "auto":
        check_world_size(ranks, f"launcher.{key}={ranks}")
        return ranks
    if config.strategy.traits.one_process:
        return 1
    if devices is None and launcher.device != "cpu":
        import torch  # Counting does not initialise CUDA.

        devices = torch.cuda.device_count()
    return devices or cpu_ranks(config)


def check_world_size(world_size: int, typed: str) -> None:
    """Check the range of a number of ranks; DtkError if it is below 1, or exceeds any cluster's size."""
    low, high = limits()["launcher.world_size"]
    if not low <= world_size <= high:
        raise DtkError(f"{typed} is out of range", f"it must be {low:.0f} to {high:.0f}")
