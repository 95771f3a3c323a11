"""Rejects a fault that cannot occur in this configuration: the run would be healthy without explanation."""

from diagnostics.contract.files import table_beside
from dtk.config.schema import Config, EveryRankFault, NodesFault, NoFault, SettingFault
from dtk.errors import DtkError
from dtk.sharding.registry import preferred

_ONLY: dict[str, dict[str, list[str]]] = table_beside(__file__)


class FaultConflictError(DtkError):
    """The fault cannot occur with this configuration."""


def check_fault(config: Config, world_size: int) -> None:
    """Refuse a fault that cannot happen in this resolved job; FaultConflictError with the first reason."""
    fault = config.fault
    if isinstance(fault, NoFault):
        return
    name = fault.name
    needed = next((kind for kind, faults in _ONLY["gradients_in"].items() if name in faults), None)
    if needed is not None and config.strategy.traits.gradients_in != needed:
        what = f"fault={name} cannot happen under strategy={config.strategy.name}"
        raise FaultConflictError(what, fix=f"use strategy={preferred(needed)}")
    for degree, faults in _ONLY["along"].items():
        if name in faults and getattr(config.parallel, degree) == 1:
            what = f"fault={name} cannot happen with parallel.{degree}=1"
            raise FaultConflictError(what, fix=f"use parallel.{degree}=2")
    cut = [f"parallel.{degree}={size}" for degree in ("pp", "cp") if (size := getattr(config.parallel, degree)) > 1]
    if cut and name in _ONLY["step"]["own"]:
        fix = " ".join(text.split("=")[0] + "=1" for text in cut)
        what = f"fault={name} calls the whole model with whole sequences"
        raise FaultConflictError(what, " ".join(cut), f"use {fix}")
    if isinstance(fault, SettingFault | NodesFault):
        return
    if world_size < 2:
        raise FaultConflictError(f"fault={name} needs two ranks", fix="use launcher.nproc=2")
    if name == "branch" and config.model.architecture != "gpt":
        raise FaultConflictError("fault=branch needs a GPT", "it changes the forward pass", "use model=gpt2_tiny")
    if not isinstance(fault, EveryRankFault) and fault.rank >= world_size:
        raise FaultConflictError(f"fault.rank={fault.rank} does not exist", f"the ranks are 0 to {world_size - 1}")
    if fault.step > config.train.steps:
        why = f"train.steps={config.train.steps}"
        raise FaultConflictError(f"fault.step={fault.step} is never reached", why, "use a smaller fault.step")
    plan = config.batch_plan(world_size)
    if name in _ONLY["step"]["accumulated"] and plan.accumulation_steps < 2:
        fix = f"use train.global_batch_size={2 * plan.micro_batch_size * plan.dp_size}"
        raise FaultConflictError(f"fault={name} needs several micro-batches a step", "here there is one", fix)
