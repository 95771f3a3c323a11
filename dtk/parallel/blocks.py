"""The blocks of a model: the repeated layers that are sharded, recomputed and compiled one by one. dtk's own models
list them as `blocks`; in other models they are detected.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from dtk.errors import DtkError

_CHOSEN = "dtk_blocks"
"""Attribute that stores the chosen blocks of a model: class names change once modules are sharded."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model in the order of its modules; empty if it has none.

    These are the modules chosen by `choose_blocks`, else the list `blocks`, else all modules of the class in the
    largest (by parameters) nn.ModuleList or nn.Sequential of a single class.
    """
    return [module for _, module in named_blocks(model)]


def named_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks with their qualified names; see `blocks_of`."""
    chosen: list[str] | None = model.__dict__.get(_CHOSEN)
    if chosen is not None:
        return [(name, model.get_submodule(name)) for name in chosen]
    own = getattr(model, "blocks", None)
    if isinstance(own, nn.ModuleList | nn.Sequential):
        return [(f"blocks.{name}", block) for name, block in own.named_children()]
    lists = [list(module.children()) for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    alike = [modules for modules in lists if len(modules) > 1 and len({type(module) for module in modules}) == 1]
    largest = max(alike, key=lambda modules: sum(map(_size, modules)), default=[])
    if not any(map(_size, largest)):
        return []
    block = type(largest[0])
    return list(_outermost((name, module) for name, module in model.named_modules() if type(module) is block))


def choose_blocks(model: nn.Module, wrap: Sequence[str]) -> None:
    """Choose the modules that `wrap` names as the blocks of this model.

    They are class names (`MyBlock`) or patterns of qualified names (`encoder.layers.*`). DtkError if one has no match.
    """
    chosen: set[str] = set()
    for entry in wrap:
        inside = [(name, module) for name, module in model.named_modules() if name]
        names = {name for name, module in inside if type(module).__name__ == entry or fnmatchcase(name, entry)}
        if not names:
            classes = sorted({type(module).__name__ for module in model.modules()} - {type(model).__name__})
            what = f"model.wrap={entry} matches no module of the model"
            fix = "name one of these, or a pattern of their qualified names: model.wrap=[encoder.layers.*]"
            raise DtkError(what, f"its modules are of the classes {', '.join(classes)}", fix)
        chosen |= names
    named = ((name, module) for name, module in model.named_modules() if name in chosen)
    setattr(model, _CHOSEN, [name for name, _ in _outermost(named)])


def describe_blocks(model: nn.Module) -> str:
    """Describe the blocks of a model: `blocks: 12 x MyBlock (layers.0 to layers.11)`."""
    blocks = named_blocks(model)
    if not blocks:
        return "blocks: none found, so the model is one unit; model.wrap=[CLASS] names them"
    # `fully_shard` creates a class derived from FSDPModule and the original class.
    bases = [type(module).__mro__ for _, module in blocks]
    classes = dict.fromkeys((mro[2] if mro[1].__name__ == "FSDPModule" else mro[0]).__name__ for mro in bases)
    names = blocks[0][0] if len(blocks) == 1 else f"{blocks[0][0]} to {blocks[-1][0]}"
    return f"blocks: {len(blocks)} x {' or '.join(classes)} ({names})"


def _outermost(named: Iterator[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Omit modules inside an earlier one: a sharded unit must not contain another unit of the same list."""
    outer: str | None = None
    for name, module in named:
        if outer is None or not name.startswith(f"{outer}."):
            outer = name
            yield name, module


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
