"""Command-line overrides, parsed with Hydra's grammar and checked before Hydra composes.

Group choices are checked against the existing files; every other key becomes `++key=value`, so that Hydra accepts it
and only the strict check decides on keys and types.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.suggest import did_you_mean
from dtk.config.folders import HARDWARE, SWEEPS
from dtk.config.schema import KINDS
from dtk.errors import DtkError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

Groups = Mapping[str, Mapping[str, Path]]
SWEPT = "hydra.sweeper.params"  # Key of a file with the values that `-m` sweeps.
LARGEST_SWEEP = 10_000  # Sweeps with more points are assumed to be typing errors.


def normalise(overrides: Sequence[str], groups: Groups, defaults: Sequence[str]) -> list[str]:
    """Return the overrides for Hydra; if a group is given twice, the last choice takes precedence.

    Groups that are not in `defaults` (custom groups) are appended with `+`.

    Raises:
        DtkError: invalid syntax, an unknown option, a list without `-m`, or a setting of Hydra itself.
    """
    choices: dict[str, str] = {}
    values = []
    for text in overrides:
        override = parse(text)
        key = override.key_or_group
        refuse_hydra(key)
        if key in (SWEEPS, "repeats"):
            fix = "use dtk sweep NAME" if key == SWEEPS else "use dtk run -m, or dtk sweep"
            raise DtkError(f"{key} is not part of an experiment", "it belongs to a sweep", fix)
        if re.match(rf"{HARDWARE}([./]|$)", key):  # Only `dtk plan` accepts it.
            fix = f"use dtk plan {HARDWARE}=NAME"
            raise DtkError(f"{key} is not part of an experiment", "it says what to plan for", fix)
        if override.is_sweep_override():
            fix = f"add -m, or quote a value with a comma: '{key}=\"a,b\"'"
            raise DtkError(f"{text} asks for several runs", fix=fix)
        if key in groups and override.package is None:
            option = _option(override, groups)
            choices[key] = f"{'' if key in defaults else '+'}{key}={option}" if option else f"~{key}"
        elif override.is_delete() or "/" in key or override.package is not None:
            values.append(text)
        else:
            section, _, name = key.partition(".")
            if section in KINDS and name == KINDS[section][0]:  # It would leave keys of the previous kind in place.
                fix = f"use {section}=OPTION: {', '.join(groups.get(section, ()))}"
                raise DtkError(f"{key} is fixed by the choice of {section}", fix=fix)
            values.append("++" + text.lstrip("+"))
    return [*choices.values(), *values]


def expand_sweep(overrides: Sequence[str], groups: Groups) -> list[list[str]]:
    """Return every combination of the values of `a,b`, choice(), range() and glob().

    The last list varies fastest, as in nested loops.

    Raises:
        DtkError: invalid syntax, a glob that matches nothing, more than `LARGEST_SWEEP` points.
    """
    axes = []
    points = 1
    for text in overrides:
        override = parse(text)
        refuse_hydra(override.key_or_group)
        axis = _values(text, override, groups) if override.is_sweep_override() else [text]
        points *= len(axis)
        if points > LARGEST_SWEEP:
            raise DtkError(f"the sweep has more than {LARGEST_SWEEP} points", fix="use shorter lists")
        axes.append(axis)
    return [list(point) for point in itertools.product(*axes)]


def parse(text: str) -> "Override":
    """Parse one override with Hydra's grammar; DtkError on invalid syntax."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not isinstance(text, str):  # Of a script that hands over a list.
        what, fix = f"an override is a string, but this is a {type(text).__name__}", 'compose("strategy=ddp", *others)'
        raise DtkError(what, fix=f"pass each as a separate argument: {fix}")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        if "=" not in text:
            raise DtkError(f'"{text}" is not an override', "it has no =", "write KEY=VALUE") from error
        key, _, value = text.partition("=")
        quoted = value.replace('"', '\\"')
        fix = f"""write KEY=VALUE; quote a value with special characters: '{key}="{quoted}"'"""
        raise DtkError(f"cannot read {text}", reason, fix) from error
    if not override.key_or_group:
        raise DtkError(f'"{text}" is not an override', "it has no key", "write KEY=VALUE")
    return override


def _option(override: "Override", groups: Groups) -> str | None:
    """Return the selected option of a group; None for `experiment=null`, the only group that may be empty."""
    group = override.key_or_group
    options = groups[group]
    listed = f"options: {', '.join(options)}"
    if override.is_delete():
        raise DtkError(f"{group} cannot be removed", fix=f"choose one of its {listed}")
    value: Any = override.value()
    if value is None and group == "experiment":
        return None
    if not isinstance(value, str) or "/" in value or value not in options:
        near = did_you_mean(str(value), options, f"{group}=") if isinstance(value, str) else ""
        typed = override.get_value_string().strip("'\"")
        raise DtkError(f'unknown {group} "{typed}"', fix=f"{near} {listed}")
    return value


def _values(text: str, override: "Override", groups: Groups) -> list[str]:
    from hydra.core.override_parser.types import Glob

    key = override.key_or_group
    if not override.is_discrete_sweep():
        raise DtkError(f"{text} has infinitely many values", fix=f"list them, or use range: {key}=range(1,5)")
    spec: Any = override._value
    if isinstance(spec, Glob):
        if key not in groups:
            raise DtkError(f"{text}: {key} has no options", "glob() matches the files of a group", "list the values")
        values = spec.filter(list(groups[key]))
        if not values:
            raise DtkError(f"{text} matches nothing", fix=f"options: {', '.join(groups[key])}")
    else:
        values = list(itertools.islice(override.sweep_string_iterator(), LARGEST_SWEEP + 1))
        if not values:
            raise DtkError(f"{text} has no value")
    return [f"{override.get_key_element()}={value}" for value in values]


def refuse_hydra(key: str, where: str = "") -> None:
    """Reject a setting of Hydra itself, with DtkError; `where` names its file if it was not typed."""
    if re.fullmatch(r"hydra[./](launcher|sweeper)|hydra\.(launcher|sweeper|sweep)\..*|hydra\.mode", key):
        why, fix = "dtk runs sweeps itself, one run after another", f"use -m with lists, typed or as {SWEPT} of a file"
        raise DtkError(f"{key}{where} has no effect", why, fix)
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        fix = "run folders: runs_folder=PATH, which may hold ${strategy.name} or ${now:%Y-%m-%d}"
        raise DtkError(f"{key}{where} has no effect", "dtk uses Hydra only to compose", fix)
