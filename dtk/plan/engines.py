"""One prediction of one job: which engine makes it, for which machine, and where two engines disagree.

Knows the engines and the machine; neither options of the command nor how a plan is shown.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dtk.config.placement import is_remote, ranks_per_node
from dtk.config.schema import Config, CustomModelConfig
from dtk.plan.prediction import Engine, Memory, Prediction

if TYPE_CHECKING:
    from dtk.plan.timing.hardware import Hardware

Choice = Literal["auto", "closed_form", "simulated", "both"]
NODE = 8
"""Ranks of one node where no hardware is chosen and no number of ranks per machine is given."""
TOLERATED = 0.05
"""Engines that differ by more than this fraction are shown side by side."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the job is planned for: a known device, or only how many ranks share a node; and who plans it."""

    local_size: int
    hardware: "Hardware | None" = None
    engine: Engine = "closed_form"


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure on which the two engines disagree."""

    what: str
    closed_form: int
    simulated: int
    unit: Literal["bytes", "calls"] = "bytes"


def machine(config: Config, hardware: "Hardware | None", choice: Choice = "auto") -> Machine:
    """Return the node that the ranks run on, sized by the hardware, else by the configuration, else by `NODE`.

    The formulas know dtk's own architectures; a model of the user's own is simulated, whatever was chosen.
    """
    launcher = config.launcher
    if is_remote(launcher):
        local_size = ranks_per_node(launcher, config.strategy)
    else:
        local_size = launcher.nproc if isinstance(launcher.nproc, int) else NODE
    own = isinstance(config.model, CustomModelConfig) and choice != "closed_form"
    engine: Engine = "simulated" if own or choice == "simulated" else "closed_form"
    return Machine(hardware.devices_per_node if hardware is not None else local_size, hardware, engine)


def predict(config: Config, world_size: int, here: Machine, engine: Engine | None = None) -> Prediction:
    """Memory and traffic by one engine, and time where the hardware is known.

    Args:
        config: its batch is settled for `world_size`.
        world_size: ranks over all nodes.
        here: the machine.
        engine: another one than the machine's: `closed_form` is instant, `simulated` runs the real step without memory.

    Raises:
        DtkError: the engine cannot say anything of this job.
    """
    made = without_time(config, world_size, here, engine)
    if here.hardware is None:
        return made
    from dtk.plan.timing.time import predict_time

    return dataclasses.replace(made, time=predict_time(made, config, here.hardware))


def without_time(config: Config, world_size: int, here: Machine, engine: Engine | None = None) -> Prediction:
    """As `predict`, but memory and traffic only: enough to know what fits.

    Raises:
        DtkError: the engine cannot say anything of this job.
    """
    made = _engine(engine or here.engine)(_on(config, here), world_size, here.local_size)
    if here.hardware is None:
        return made
    return dataclasses.replace(made, hardware=here.hardware.name, device_memory_bytes=here.hardware.memory_bytes)


def _on(config: Config, here: Machine) -> Config:
    """Return the configuration with the hardware's device, so that the engines count the kernels of that device."""
    if here.hardware is None:
        return config
    device: Literal["cuda", "cpu"] = "cuda" if here.hardware.backend == "nccl" else "cpu"
    return dataclasses.replace(config, launcher=dataclasses.replace(config.launcher, device=device))


def differences(closed_form: Prediction, simulated: Prediction) -> tuple[Difference, ...]:
    """Figures on which the engines differ by more than `TOLERATED`, the peak first; traffic must be the same."""
    return (*_memory(closed_form, simulated), *_traffic(closed_form, simulated))


def _memory(closed_form: Prediction, simulated: Prediction) -> Iterator[Difference]:
    ours, theirs = closed_form.memory, simulated.memory
    whole = max(ours.peak_bytes, theirs.peak_bytes)
    if abs(ours.peak_bytes - theirs.peak_bytes) > TOLERATED * whole:
        yield Difference("peak", ours.peak_bytes, theirs.peak_bytes)
    for name in {**ours.at_peak_bytes, **theirs.at_peak_bytes}:
        one, other = ours.at_peak_bytes.get(name, 0), theirs.at_peak_bytes.get(name, 0)
        if abs(one - other) > TOLERATED * whole:
            yield Difference(name, one, other)
    yield from _regions(ours, theirs)


def _regions(ours: Memory, theirs: Memory) -> Iterator[Difference]:
    """Yield the regions whose highest memory use differs between the engines, except the region of the peak itself."""
    for region in {**ours.by_region_bytes, **theirs.by_region_bytes}:
        if region == ours.region == theirs.region:
            continue
        one, other = ours.by_region_bytes.get(region, 0), theirs.by_region_bytes.get(region, 0)
        if abs(one - other) > TOLERATED * max(one, other):
            yield Difference(f"peak in {region}", one, other)


def _traffic(closed_form: Prediction, simulated: Prediction) -> Iterator[Difference]:
    ours, theirs = ({(one.op, one.group): one for one in made.traffic} for made in (closed_form, simulated))
    for key in {**ours, **theirs}:
        one, other = ours.get(key), theirs.get(key)
        name = f"{key[0]} over {key[1]}"
        counts = one.count if one else 0, other.count if other else 0
        if counts[0] != counts[1]:
            yield Difference(name, *counts, unit="calls")
        sizes = one.size_bytes if one else 0, other.size_bytes if other else 0
        if sizes[0] != sizes[1]:
            yield Difference(name, *sizes)


def _engine(name: Engine) -> Callable[[Config, int, int], Prediction]:
    """Return the function of the named engine; torch is imported only for the engine that needs it."""
    if name == "simulated":
        from dtk.plan.simulated.engine import simulate

        return simulate
    from dtk.plan.formulas.closed_form import closed_form

    return closed_form
