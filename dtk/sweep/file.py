"""Reads a W&B sweep file, more strictly than W&B: whatever `dtk run` cannot read is a one-line error."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from diagnostics.contract.files import read_record, table_beside
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.config.overrides import LARGEST_SWEEP, parse
from dtk.errors import DtkError, Errors, refused

METHODS = ("grid", "random", "bayes")
_errors, _TABLE = Errors(__file__), table_beside(__file__)
KEYS, SPACE = (tuple(_TABLE[name].split()) for name in ("keys", "space"))
MOST_BYTES = 300_000  # Read in seconds; the maximum of ten thousand values takes less.
_DEEPEST = 20  # Maximum depth of brackets.
CHOICES = "${args_no_hyphens}"  # W&B's name for the parameters of a point as `key=value` words.
DEFAULT = ["${env}", "${interpreter}", "-m", "dtk.run", "tracker=wandb", CHOICES]
WRITE = f"write command: [{', '.join(repr(word) if word.startswith('$') else word for word in DEFAULT)}]"
_PROGRAM = "dtk.run"
_NUMBERS = ("min", "max", "mu", "sigma", "q", "a", "b")


@dataclass(frozen=True, slots=True)
class SweepFile:
    """Contents of a sweep file."""

    path: Path
    content: dict[str, Any]
    """The whole file, for the search and the server."""
    method: str
    parameters: dict[str, dict[str, Any]]
    """Group or dotted key -> its space of values."""
    fixed: list[str]
    """Overrides of every point, from `command`."""
    metric: dict[str, Any] = field(default_factory=dict)
    """Name, goal and perhaps target; empty without one."""
    run_cap: int | None = None

    @property
    def stops_early(self) -> bool:
        """Return whether runs that do worse than others are stopped early."""
        return "early_terminate" in self.content


def read(path: Path) -> SweepFile:
    """Read and check a file; DtkError if the file is missing or not YAML, or has something that dtk cannot run."""
    content = load(path)
    try:
        return _checked(path, content)
    except DtkError as error:
        raise DtkError(f"{path}: {error.what}", error.why, error.fix) from error


def values(space: Mapping[str, Any]) -> list[Any]:
    """Return the values that a space names: all of a list, or both ends of a range."""
    if "value" in space:
        return [space["value"]]
    return list(space.get("values", [space[end] for end in ("min", "max") if end in space]))


def _checked(path: Path, content: dict[str, Any]) -> SweepFile:
    for key in content:
        if key not in KEYS:
            raise _errors("key", key=key, near=did_you_mean(key, KEYS) or f"keys: {', '.join(KEYS)}")
    method = content.get("method")
    if method not in METHODS:
        what = f"unknown method {method}" if "method" in content else "it has no method"
        raise _errors("method", what=what, methods=METHODS)
    spaces, cap = content.get("parameters"), content.get("run_cap")
    # Reject too many points by count: checking each value takes time, and each point far more.
    points = 1.0
    for key, space in spaces.items() if isinstance(spaces, dict) else ():
        if isinstance(space, dict):
            points *= _count(space)
            count = len(space["values"]) if isinstance(space.get("values"), list) else 0
            _errors.refuse({"many_values": count > LARGEST_SWEEP}, key=key, count=count, most=LARGEST_SWEEP)
    if method == "grid" and points > LARGEST_SWEEP:
        raise _errors("many_points", count=f"{points:,.0f}" if points < 1e15 else "infinitely many", most=LARGEST_SWEEP)
    if not isinstance(spaces, dict) or not spaces:
        raise _errors("no_parameters")
    parameters = {str(key): _space(str(key), space) for key, space in spaces.items()}
    metric = _metric(content, method)
    is_count = isinstance(cap, int) and not isinstance(cap, bool) and cap >= 1
    _errors.refuse({"run_cap": cap is not None and not is_count}, cap=str(cap))
    return SweepFile(path, content, method, parameters, fixed_overrides(content), metric, cap)


def _count(space: Mapping[str, Any]) -> float:
    """Return the number of grid values of a space; 1 for spaces that are checked later."""
    if isinstance(space.get("values"), list):
        return len(space["values"])
    low, high, step = space.get("min"), space.get("max"), space.get("q", 1)
    if not all(isinstance(number, int | float) for number in (low, high, step)) or "value" in space:
        return 1
    if "q" not in space and not (isinstance(low, int) and isinstance(high, int)):
        return 1  # Not a list: the search rejects it.
    try:
        return max(1.0, (float(high) - float(low)) / float(step) + 1)  # type: ignore[arg-type]
    except (OverflowError, ZeroDivisionError):
        return float("inf")


def _space(key: str, space: Any) -> dict[str, Any]:
    """Check one parameter; format each value as it would be typed."""
    if not isinstance(space, dict) or not space:
        raise _errors("no_values", key=key)
    for word in space:
        _errors.refuse({"nested": word == "parameters"}, key=key)
        if word not in SPACE:
            near = did_you_mean(str(word), SPACE) or f"keys: {', '.join(SPACE)}"
            raise _errors("space_key", key=key, word=word, near=near)
    for word in ("values", "probabilities"):
        is_list = isinstance(space.get(word), list) and space[word]
        _errors.refuse({"not_a_list": word in space and not is_list}, key=key, word=word)
    for word in _NUMBERS:
        value = space.get(word)
        _errors.refuse({"text": isinstance(value, str)}, key=key, word=word, value=value)
        refuse_endless(f"{key}: {word}", value)
    for value in values(space):
        spelled(key, value)
    return space


def _metric(content: dict[str, Any], method: str) -> dict[str, Any]:
    """Return the metric to minimize or maximize, which must be one that runs record."""
    metric = content.get("metric")
    if metric is None:
        needs = "method: bayes" if method == "bayes" else "early_terminate" if "early_terminate" in content else ""
        _errors.refuse({"needs_metric": needs}, needs=needs)
        return {}
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise _errors("metric_name")
    from dtk.record.metrics import DEFINITIONS

    name, goal = metric["name"], metric.get("goal", "minimize")
    if name not in DEFINITIONS:
        near = did_you_mean(name, DEFINITIONS) or "loss and tokens_per_s are two of them"
        raise _errors("metric", name=name, near=near)
    _errors.refuse({"goal": goal not in ("minimize", "maximize")}, goal=str(goal))
    return {**metric, "goal": goal}


def load(path: Path) -> dict[str, Any]:
    """Return a file's mapping, with text keys; DtkError if it is irregular, too large, no YAML, or repeats a key."""
    _errors.refuse({"folder": path.is_dir()}, path=path)
    try:
        with refused(f"cannot read {path}"):
            data = read_record(path, MOST_BYTES)
    except ValueError as error:
        raise _errors("size", path=path, most=MOST_BYTES) from error
    with refused(str(path), "see conf/sweep/ for examples", ValueError):
        content = load_yaml(data, Limits(depth=_DEEPEST))
    if not isinstance(content, dict):
        raise _errors("mapping", path=path)
    return {str(key): value for key, value in content.items()}


def fixed_overrides(content: dict[str, Any]) -> list[str]:
    """Return the overrides that `command` gives to every point; DtkError unless it ends in dtk's with overrides."""
    words = content.get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _errors("no_command" if words is None else "words", write=WRITE)
    named = [word if word != "${program}" else str(content.get("program")) for word in words]
    start = next((at for at, pair in enumerate(pairwise(named)) if pair in (("-m", _PROGRAM), ("dtk", "run"))), None)
    if start is None:
        raise _errors("not_dtk", write=WRITE)
    overrides = named[start + 2 :]
    count = overrides.count(CHOICES)
    _errors.refuse({"choices": count != 1}, count=count, choices=CHOICES, write=WRITE)
    fixed = [word for word in overrides if word != CHOICES]
    for word in fixed:
        _errors.refuse({"word": word.startswith(("-", "$"))}, word=word, choices=CHOICES)
        _errors.refuse({"several": parse(word).is_sweep_override()}, word=word)
    return fixed


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
