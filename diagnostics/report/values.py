"""Values of a report's measures, whoever wrote them: what has another shape is empty, never an error."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

_LARGEST = 1 << 256


def mapping(value: Any) -> Mapping[str, Any]:
    """The mapping, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> Sequence[Any]:
    """The list, or an empty one."""
    return value if isinstance(value, list | tuple) else ()


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value) if isfinite(value) else None
