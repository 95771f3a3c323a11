"""Reads a W&B sweep file, more strictly than W&B: whatever `dtk run` cannot read is a one-line error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from diagnostics.contract.files import read_record, table_beside
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence import safe_yaml
from diagnostics.evidence.limits import Limits
from dtk.config.overrides import LARGEST_SWEEP, parse
from dtk.errors import DtkError, refused
from dtk.sweep.values import refuse_endless, spelled

METHODS = ("grid", "random", "bayes")
KEYS, SPACE = (tuple(words.split()) for words in table_beside(__file__).values())
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
            raise DtkError(f'unknown key "{key}"', fix=did_you_mean(key, KEYS) or f"keys: {', '.join(KEYS)}")
    method = content.get("method")
    if method not in METHODS:
        what = f"unknown method {method}" if "method" in content else "it has no method"
        raise DtkError(what, fix=f"method is one of {', '.join(METHODS)}")
    _refuse_large(content.get("parameters"), method)
    spaces = content.get("parameters")
    if not isinstance(spaces, dict) or not spaces:
        raise DtkError("it has no parameters", fix="write parameters: {strategy: {values: [ddp, fsdp]}}")
    parameters = {str(key): _space(str(key), space) for key, space in spaces.items()}
    metric = _metric(content, method)
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 1):
        raise DtkError(f"run_cap: {cap} is not a number of runs", "the sweep ends after that many", "write run_cap: 20")
    return SweepFile(path, content, method, parameters, fixed_overrides(content), metric, cap)


def _refuse_large(given: Any, method: str) -> None:
    """Reject too many points by count: checking each value takes time, and each point far more."""
    most, points = f"at most {LARGEST_SWEEP:,} are allowed", 1.0
    for key, space in given.items() if isinstance(given, dict) else ():
        if not isinstance(space, dict):
            continue
        points *= _count(space)
        listed = space.get("values")
        if isinstance(listed, list) and len(listed) > LARGEST_SWEEP:
            raise DtkError(f"parameters: {key} has {len(listed):,} values", most, "give min and max")
    if method == "grid" and points > LARGEST_SWEEP:
        count = f"{points:,.0f}" if points < 1e15 else "infinitely many"
        raise DtkError(f"the grid has {count} points", most, "use method: random, or shorter lists")


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
        fix = f"write {key}: {{values: [...]}} or {{min: ..., max: ...}}"
        raise DtkError(f"parameters: {key} has no values", fix=fix)
    for word in space:
        if word == "parameters":
            why = "W&B would pass it as one dictionary"
            raise DtkError(f"parameters: {key} is nested", why, f"write dotted keys: {key}.KEY")
        if word not in SPACE:
            near = did_you_mean(str(word), SPACE)
            raise DtkError(f'parameters: {key} has an unknown key "{word}"', fix=near or f"keys: {', '.join(SPACE)}")
    for word in ("values", "probabilities"):
        if word in space and (not isinstance(space[word], list) or not space[word]):
            raise DtkError(f"parameters: {key}: {word} is not a list of values")
    for word in _NUMBERS:
        if isinstance(space.get(word), str):
            what = f"parameters: {key}: {word}: {space[word]} is a text"
            raise DtkError(what, "YAML needs a decimal point in such numbers", "write 1.0e-3")
        refuse_endless(f"{key}: {word}", space.get(word))
    for value in values(space):
        spelled(key, value)
    return space


def _metric(content: dict[str, Any], method: str) -> dict[str, Any]:
    """Return the metric to minimize or maximize, which must be one that runs record."""
    metric = content.get("metric")
    example = "write metric: {name: loss, goal: minimize}"
    if metric is None:
        needs = "method: bayes" if method == "bayes" else "early_terminate" if "early_terminate" in content else ""
        if needs:
            raise DtkError(f"{needs} needs a metric", fix=example)
        return {}
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise DtkError("metric has no name", fix=example)
    from dtk.record.metrics import DEFINITIONS

    name = metric["name"]
    if name not in DEFINITIONS:
        near = did_you_mean(name, DEFINITIONS)
        raise DtkError(f'no run records the metric "{name}"', fix=near or "loss and tokens_per_s are two of them")
    goal = metric.get("goal", "minimize")
    if goal not in ("minimize", "maximize"):
        raise DtkError(f"metric: unknown goal {goal}", fix="goal is minimize or maximize")
    return {**metric, "goal": goal}


def load(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds, with its keys as text; DtkError if it is not a regular file, too large, not
    YAML, or has a duplicate key.
    """
    if path.is_dir():
        raise DtkError(f"{path} is a folder, not a sweep file", fix="name a YAML file in it")
    try:
        with refused(f"cannot read {path}"):
            data = read_record(path, MOST_BYTES)
    except ValueError as error:
        raise DtkError(f"{path} is not a sweep file", f"it has more than {MOST_BYTES:,} bytes") from error
    with refused(str(path), "see conf/sweep/ for examples", ValueError):
        content = safe_yaml.loads(data, Limits(depth=_DEEPEST))
    if not isinstance(content, dict):
        raise DtkError(f"{path} is not a sweep file", "it is not a mapping of keys", "see conf/sweep/ for examples")
    return {str(key): value for key, value in content.items()}


def fixed_overrides(content: dict[str, Any]) -> list[str]:
    """Return the overrides that a file's `command` gives to every point; DtkError if there is no command, or it does
    not end in dtk's with its overrides.
    """
    words = content.get("command")
    if words is None:
        raise DtkError("it has no command", "W&B would pass --key=value to a program", WRITE)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DtkError("command is not a list of words", fix=WRITE)
    named = [word if word != "${program}" else str(content.get("program")) for word in words]
    start = next((at for at, pair in enumerate(pairwise(named)) if pair in (("-m", _PROGRAM), ("dtk", "run"))), None)
    if start is None:
        raise DtkError("command does not run dtk", "a point is a dtk run", WRITE)
    overrides = named[start + 2 :]
    if overrides.count(CHOICES) != 1:
        what = f"command passes a point's parameters {overrides.count(CHOICES)} times"
        raise DtkError(what, f"{CHOICES} is what dtk run reads", WRITE)
    fixed = [word for word in overrides if word != CHOICES]
    for word in fixed:
        if word.startswith(("-", "$")):
            raise DtkError(f"command: {word} cannot be used", f"a point takes KEY=VALUE and {CHOICES}", "leave it out")
        if parse(word).is_sweep_override():
            raise DtkError(f"command: {word} asks for several runs", fix="list the values under parameters")
    return fixed
