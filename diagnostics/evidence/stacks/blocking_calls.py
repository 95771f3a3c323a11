"""C functions in which a host may block, by their names in Python and in native stacks: `blocking_calls.yaml`."""

import re
from typing import Any, Literal

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase

Kind = Literal["collective", "lock", "file I/O", "process", "network", "sleep", "device", "input", "store"]
Blocks = tuple[Kind, Phrase]  # Kind of resource a call may block on and its wording: `("lock", "waiting for a lock")`.

_TABLE: dict[str, Any] = table_beside(__file__)
_BLOCKS: dict[str, Blocks] = {name: (kind, Phrase(name, words, {})) for name, (kind, words) in _TABLE["blocks"].items()}


def _by_name(names: dict[str, list[str]]) -> dict[str, Blocks]:
    return {name: _BLOCKS[blocks] for blocks, group in names.items() for name in group}


LOCK, READ, STORE, WORK = (_BLOCKS[name] for name in ("lock", "read", "store", "work"))
CALLS = _by_name(_TABLE["calls"])
METHODS = {kind: _by_name(names) for kind, names in _TABLE["methods"].items()}
"""Kind of object -> method in C, or `""` for entering or iterating it."""
MAKERS: dict[str, str] = {maker: kind for kind, makers in _TABLE["makers"].items() for maker in makers}
"""What makes an object -> its kind."""
QUICK, QUICK_METHODS = frozenset(_TABLE["quick"]), frozenset(_TABLE["quick_methods"])
"""Builtins and methods that never block."""
_NATIVE, _KERNEL = (
    tuple((re.compile(pattern), _BLOCKS[name]) for name, pattern in _TABLE[table]) for table in ("native", "kernel")
)


def kernel(wchan: str) -> Blocks | None:
    """Return what a function of the kernel shows that a thread waits for, or None if it may be anything."""
    return next((blocks for pattern, blocks in _KERNEL if pattern.search(wchan)), None)


def native(function: str) -> Blocks | None:
    """Return what a C function may block in, or None if it is not a known one."""
    name = function.removesuffix("_nocancel")
    if name.startswith("__"):
        name = name.removeprefix("__GI_").lstrip("_").removeprefix("libc_")
    return next((blocks for pattern, blocks in _NATIVE if pattern.match(name)), None)
