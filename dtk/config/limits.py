"""The range of every number in the configuration. Rules between keys are in `checks`."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from diagnostics.contract.files import table_beside
from diagnostics.contract.origins import flat
from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.errors import DtkError

_ABOVE_ZERO = math.ulp(0.0)  # The smallest positive float: excludes 0.
_BELOW_ONE = math.nextafter(1.0, 0.0)  # The largest float below 1: excludes 1.
_NONE = math.inf
_DIGITS = 40  # Longer numbers are truncated in messages.

_OPEN = {"above 0": _ABOVE_ZERO, "below 1": _BELOW_ONE}


@cache
def limits() -> dict[str, tuple[float, float]]:
    """Return dotted key -> (smallest, largest value). A test compares it with the schema, so no number is missing."""
    table = table_beside(__file__)
    return {key: (_OPEN.get(low, low), _OPEN.get(high, high)) for low, high, keys in table for key in keys.split()}


def check_limits(config: Config) -> None:
    """Reject a number outside its range; DtkError for the first one, with the range."""
    check_numbers(to_plain(config), {f"strategy.{key}": bounds for key, bounds in config.strategy.limits.items()})
    betas = getattr(config.optimizer, "betas", None)
    if betas is not None and len(betas) != 2:
        raise DtkError(f"optimizer.betas has {len(betas)} numbers", "AdamW has two", "use optimizer.betas=[0.9,0.95]")
    if getattr(config.optimizer, "nesterov", False) and not config.optimizer.momentum:
        raise DtkError("optimizer.nesterov=true needs optimizer.momentum above 0", fix="use optimizer.momentum=0.9")


def check_numbers(plain: dict[str, Any], more: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Reject a number outside its range, in a whole configuration or some sections; DtkError names the first one."""
    ranges = {**limits(), **(more or {})}
    for key, value in _numbers(plain):
        low, high = ranges.get(key, (-_NONE, _NONE))
        if not low <= value <= high:
            least = "above 0" if low == _ABOVE_ZERO else f"{_show(low)} or more"
            span = f"above 0, at most {_show(high)}" if low == _ABOVE_ZERO else f"{_show(low)} to {_show(high)}"
            span = least if high == _NONE else f"{least} and below 1" if high == _BELOW_ONE else span
            raise DtkError(f"{key}={_show(value)} is out of range", f"it must be {span}")


def _numbers(plain: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield every number by its dotted key; members of a list by the key of the list."""
    for key, value in flat(plain).items():
        members = value if isinstance(value, list) else [value]
        yield from ((key, x) for x in members if isinstance(x, int | float) and not isinstance(x, bool))


def _show(number: float) -> str:
    """Format an integer in full, truncated if very long, and any other number to 12 digits."""
    if isinstance(number, float):
        return f"{number:.12g}"
    text = str(number)
    return text if len(text) <= _DIGITS else f"{text[:6]}...({len(text)} digits)"
