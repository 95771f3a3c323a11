"""The job to plan, composed and checked as in `dtk run` without this machine's ports or data, and its prediction: the
engine, the hardware, where the two engines disagree, and `plan.json` of a run.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.config.batch import fill_degrees, settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import Composed, compose
from dtk.config.instantiate import check_targets
from dtk.config.limits import limits
from dtk.config.placement import Placement, cpu_ranks, is_remote, ranks_per_node, remote_placement
from dtk.config.resume import resume
from dtk.config.schema import Config, LauncherConfig, NoFault, RemoteLauncher, SettingFault, TrainConfig
from dtk.errors import DtkError
from dtk.plan.formulas.prediction import Engine, Prediction
from dtk.plan.timing.hardware import Hardware


def planned_job(
    overrides: list[str], config_dir: Path | None = None, world_size: int | None = None, devices: int | None = None
) -> Composed:
    """Compose a job, check it for `world_size` ranks, and divide the batch over them.

    `world_size` None: `launcher.world_size`, or the ranks that `dtk run` would start; `devices` None: this machine's.

    Return the job with `train.micro_batch_size` and `launcher.world_size` set. A default global batch that is not
    divisible by the ranks becomes one sample per rank, which is added to the overrides. DtkError if the job cannot be
    composed, its mesh or batch does not fit the ranks, or it violates a rule.
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


Choice = Literal["auto", "closed_form", "simulated", "both"]
NODE = 8  # Chosen, as most nodes have 8 devices: ranks per node without hardware and a configured number.
TOLERATED = 0.05  # Chosen: relative difference above which the figures of both engines are shown.


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to plan for: a known device or only a node size, and the engine."""

    local_size: int
    hardware: Hardware | None = None
    engine: Engine = "closed_form"


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure on which the two engines disagree."""

    what: str
    closed_form: int
    simulated: int
    unit: Literal["bytes", "calls"] = "bytes"


def machine(config: Config, hardware: Hardware | None, choice: Choice = "auto") -> Machine:
    """Return the node that the ranks run on, sized by the hardware, else by the configuration, else by `NODE`.

    The formulas cover dtk's own models, data and optimizers; with custom ones it is simulated, unless closed_form.
    """
    launcher = config.launcher
    here = launcher.nproc if isinstance(launcher.nproc, int) else NODE
    local_size = ranks_per_node(launcher, config.strategy) if is_remote(launcher) else here
    own = any(getattr(section, "_target_", None) for section in (config.model, config.data, config.optimizer))
    simulated = choice == "simulated" or (own and choice != "closed_form")
    engine: Engine = "simulated" if simulated else "closed_form"
    return Machine(hardware.devices_per_node if hardware is not None else local_size, hardware, engine)


def predict(
    config: Config, world_size: int, target: Machine, engine: Engine | None = None, timed: bool = True
) -> Prediction:
    """Predict memory and traffic with one engine, and time if the hardware is known.

    `engine` overrides the machine's: `closed_form` is instant, `simulated` runs the real step without memory. Memory
    and traffic, without `timed`, are enough for fitting. DtkError if the engine does not support this job.
    """
    if (engine or target.engine) == "simulated":  # Only the simulated engine needs torch.
        from dtk.plan.simulated.engine import simulate as predicted
    else:
        from dtk.plan.formulas.closed_form import closed_form as predicted
    prediction = predicted(on_device(config, target), world_size, target.local_size)
    prediction = dataclasses.replace(prediction, node_ranks=min(target.local_size, world_size))
    if (hardware := target.hardware) is None:
        return prediction
    device: dict[str, Any] = {"hardware": hardware.name, "device_memory_bytes": hardware.memory_bytes}
    if timed:
        from dtk.plan.timing.time import step_time

        device["time"] = step_time(config, world_size, hardware)
    return dataclasses.replace(prediction, node_host_bytes=hardware.host_memory_bytes, **device)


def on_device(config: Config, target: Machine) -> Config:
    """Return the configuration with the hardware's device, so that the engines use that device's kernels."""
    if target.hardware is None:
        return config
    device: Literal["cuda", "cpu"] = "cuda" if target.hardware.backend == "nccl" else "cpu"
    return dataclasses.replace(config, launcher=dataclasses.replace(config.launcher, device=device))


def differences(closed_form: Prediction, simulated: Prediction) -> tuple[Difference, ...]:
    """Return figures on which the engines differ: memory by more than `TOLERATED`, the peak first; traffic at all."""
    closed, walked = closed_form.memory, simulated.memory
    whole = max(closed.peak_bytes, walked.peak_bytes)
    figures = [("peak", closed.peak_bytes, walked.peak_bytes, whole)]
    for name in {**closed.at_peak_bytes, **walked.at_peak_bytes}:
        figures.append((name, closed.at_peak_bytes.get(name, 0), walked.at_peak_bytes.get(name, 0), whole))
    for region in {**closed.by_region_bytes, **walked.by_region_bytes}:
        if not region == closed.region == walked.region:
            sizes = closed.by_region_bytes.get(region, 0), walked.by_region_bytes.get(region, 0)
            figures.append((f"peak in {region}", *sizes, max(sizes)))
    unlike = [Difference(what, a, b) for what, a, b, scale in figures if abs(a - b) > TOLERATED * scale]
    (calls, buffers), (real_calls, real_buffers) = _sums(closed_form), _sums(simulated)
    for key in {**calls, **real_calls}:
        if calls[key] != real_calls[key]:
            unlike.append(Difference(key, calls[key], real_calls[key], "calls"))
        if buffers[key] != real_buffers[key]:
            unlike.append(Difference(key, buffers[key], real_buffers[key]))
    return tuple(unlike)


def _sums(prediction: Prediction) -> tuple[Counter[str], Counter[str]]:
    """Return calls and bytes per operation and dimension, which may have several groups: all stages, or both ends."""
    counts, sizes = Counter[str](), Counter[str]()
    for call in prediction.traffic:
        counts[f"{call.op} over {call.group}"] += call.count
        sizes[f"{call.op} over {call.group}"] += call.size_bytes
    return counts, sizes


def keep_plan(paths: RunPaths, composed: Composed, placement: Placement) -> None:
    """Write the closed-form prediction into the run folder, for `dtk diagnose`. Never fails a run."""
    if (plan := planned(composed, placement)) is not None:
        with _reported():
            write_json(paths.plan, plan)


def planned(composed: Composed, placement: Placement) -> dict[str, Any] | None:
    """Return the plan to write; for a job with an injected fault, the plan of the job without the fault.

    None if the formulas do not cover the job, such as a custom model, or fail, which stderr says.
    """
    config = composed.config
    with _reported(), suppress(DtkError):
        from dtk.plan.formulas.closed_form import closed_form

        if isinstance(config.fault, SettingFault):  # Settings that the fault changed are in the strategy's own file.
            typed = [text for text in composed.overrides if text.lstrip("+~").startswith("strategy.")]
            strategy = compose([f"strategy={config.strategy.name}", *typed]).config.strategy
            config = dataclasses.replace(config, strategy=strategy, fault=NoFault())
        launcher = dataclasses.replace(config.launcher, device=placement.device)
        config = dataclasses.replace(config, launcher=launcher)
        return closed_form(config, placement.world_size, placement.nproc).as_json()
    return None


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"dtk: no plan was stored: {text}; the run continues", file=sys.stderr)
