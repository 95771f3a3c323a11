"""Formats a parameter's value as W&B's agent does, `KEY=` and Python's str(); rejects what Hydra parses differently."""

import math
from typing import Any

from dtk.config.overrides import parse
from dtk.errors import DtkError


def spelled(key: str, value: Any) -> str:
    """Return a parameter as `KEY=VALUE`; DtkError for null, a dictionary, or a text that Hydra reads differently."""
    value = plain(value)
    refuse_endless(key, value)
    if value is None or (isinstance(value, list) and None in value):
        raise DtkError(f"parameters: {key} has a null", 'W&B would pass "None"', "leave the key out of the sweep")
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        raise DtkError(f"parameters: {key} has a dictionary for a value", fix=f"sweep its keys: {key}.KEY")
    text = f"{key}={value}"
    try:
        override = parse(text)
    except (DtkError, RecursionError) as error:
        raise _unsafe(key, value, "it cannot be passed on a command line as it is") from error
    if override.is_sweep_override():
        raise _unsafe(key, value, "with its comma it would be several values")
    read = override.value()
    # YAML parses 1e-3 as a text, and Hydra as the number that was meant.
    meant = isinstance(value, str) and isinstance(read, int | float) and not isinstance(read, bool)
    if not meant and (type(read) is not type(value) or read != value):
        raise _unsafe(key, value, f"it would be read as {read!r}")
    return text


def refuse_endless(key: str, value: Any) -> None:
    """Reject YAML's .inf and .nan; DtkError if it is one of them, or a list with one."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, float) and not math.isfinite(item):
            name = ".nan" if math.isnan(item) else ".inf" if item > 0 else "-.inf"
            why = "it is not a number" if math.isnan(item) else "it means infinity"
            raise DtkError(f"parameters: {key} has the value {name}", why, "write a finite number")


def plain(value: Any) -> Any:
    """Return the value without numpy types, which print differently."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str | list | dict) else value


def _unsafe(key: str, value: Any, why: str) -> DtkError:
    return DtkError(f"parameters: {key}={value}", why, "put it into a YAML file of --config-dir and sweep that choice")
