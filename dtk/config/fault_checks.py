"""Rejects a fault that cannot occur in this configuration: the run would be healthy without explanation."""

from diagnostics.contract.files import table_beside
from dtk.config.schema import Config, EveryRankFault, NodesFault, NoFault, SettingFault
from dtk.errors import DtkError, Errors
from dtk.sharding.registry import overrides_for

_ONLY: dict[str, dict[str, list[str]]] = table_beside(__file__)


class FaultConflictError(DtkError):
    """The fault cannot occur with this configuration."""


_errors = Errors(__file__, FaultConflictError)


def check_fault(config: Config, world_size: int) -> None:
    """Refuse a fault that cannot happen in this resolved job; FaultConflictError with the first reason."""
    fault = config.fault
    if isinstance(fault, NoFault):
        return
    name, mesh, divided = fault.name, config.mesh(world_size), config.parallel.cut
    needed = next((kind for kind, faults in _ONLY["gradients_in"].items() if name in faults), None)
    instead = overrides_for(needed, config.strategy, mesh, divided) if needed else ""
    _errors.refuse({"strategy": instead}, c=config, divided=" ".join(divided), instead=instead)
    for degree, faults in _ONLY["along"].items():
        _errors.refuse({"degree": name in faults and getattr(config.parallel, degree) == 1}, c=config, degree=degree)
    undivided = [f"parallel.{degree}=" for degree, faults in _ONLY["undivided"].items() if name in faults]
    cut = [text for text in divided if text.startswith(tuple(undivided))]
    whole = " ".join(f"{text.split('=')[0]}=1" for text in cut)
    _errors.refuse({"cut": cut}, c=config, cut=" ".join(cut), whole=whole)
    if isinstance(fault, SettingFault | NodesFault):
        return
    plan = config.batch_plan(world_size)
    rules = {
        "one_rank": world_size < 2,
        "branch": name == "branch" and config.model.architecture != "gpt",
        "rank": not isinstance(fault, EveryRankFault) and fault.rank >= world_size,
        "step": fault.step > config.train.steps,
        "one_micro_batch": name in _ONLY["step"]["accumulated"] and plan.accumulation_steps < 2,
    }
    _errors.refuse(rules, c=config, last=world_size - 1, batch=2 * plan.micro_batch_size * plan.dp_size)
