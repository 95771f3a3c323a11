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
from dtk.errors import Errors

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

Groups = Mapping[str, Mapping[str, Path]]
_errors = Errors(__file__)
SWEPT = "hydra.sweeper.params"  # Key of a file with the values that `-m` sweeps.
LARGEST_SWEEP = 10_000  # Sweeps with more points are assumed to be typing errors.


def normalise(overrides: Sequence[str], groups: Groups, defaults: Sequence[str]) -> list[str]:
    """Return the overrides for Hydra; if a group is given twice, the last choice takes precedence.

    Groups that are not in `defaults` (custom groups) are appended with `+`.

    DtkError for invalid syntax, an unknown option, a list without `-m`, or a setting of Hydra itself.
    """
    choices: dict[str, str] = {}
    values = []
    for text in overrides:
        override = parse(text)
        key = override.key_or_group
        refuse_hydra(key)
        rules = {
            "sweep": key == SWEEPS,
            "repeats": key == "repeats",
            "hardware": re.match(rf"{HARDWARE}([./]|$)", key),  # Only `dtk plan` accepts it.
            "several": override.is_sweep_override(),
        }
        _errors.refuse(rules, key=key, text=text)
        if key in groups and override.package is None:
            option = _option(override, groups)
            choices[key] = f"{'' if key in defaults else '+'}{key}={option}" if option else f"~{key}"
        elif override.is_delete() or "/" in key or override.package is not None:
            values.append(text)
        else:
            section, _, name = key.partition(".")
            is_kind = section in KINDS and name == KINDS[section][0]  # It would leave keys of the previous kind.
            _errors.refuse({"kind": is_kind}, key=key, section=section, options=", ".join(groups.get(section, ())))
            values.append("++" + text.lstrip("+"))
    return [*choices.values(), *values]


def expand_sweep(overrides: Sequence[str], groups: Groups) -> list[list[str]]:
    """Return every combination of the values of `a,b`, choice(), range() and glob().

    The last list varies fastest, as in nested loops.

    DtkError for invalid syntax, a glob that matches nothing, more than `LARGEST_SWEEP` points.
    """
    axes = []
    points = 1
    for text in overrides:
        override = parse(text)
        refuse_hydra(override.key_or_group)
        axis = _values(text, override, groups) if override.is_sweep_override() else [text]
        points *= len(axis)
        _errors.refuse({"points": points > LARGEST_SWEEP}, most=LARGEST_SWEEP)
        axes.append(axis)
    return [list(point) for point in itertools.product(*axes)]


def parse(text: str) -> "Override":
    """Parse one override with Hydra's grammar; DtkError on invalid syntax."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not isinstance(text, str):  # Of a script that hands over a list.
        raise _errors("no_text", kind=type(text).__name__)
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=")
        about = {"reason": str(error).splitlines()[0], "key": key, "quoted": value.replace('"', '\\"')}
        raise _errors("unreadable" if equals else "no_equals", text=text, **about) from error
    _errors.refuse({"no_key": not override.key_or_group}, text=text)
    return override


def _option(override: "Override", groups: Groups) -> str | None:
    """Return the selected option of a group; None for `experiment=null`, the only group that may be empty."""
    group = override.key_or_group
    options = groups[group]
    listed = ", ".join(options)
    _errors.refuse({"group": override.is_delete()}, group=group, options=listed)
    value: Any = override.value()
    if value is None and group == "experiment":
        return None
    if not isinstance(value, str) or "/" in value or value not in options:
        near = did_you_mean(str(value), options, f"{group}=") if isinstance(value, str) else ""
        typed = override.get_value_string().strip("'\"")
        raise _errors("option", group=group, typed=typed, near=near, options=listed)
    return value


def _values(text: str, override: "Override", groups: Groups) -> list[str]:
    from hydra.core.override_parser.types import Glob

    key = override.key_or_group
    _errors.refuse({"infinite": not override.is_discrete_sweep()}, text=text, key=key)
    spec: Any = override._value
    if isinstance(spec, Glob):
        _errors.refuse({"no_options": key not in groups}, text=text, key=key)
        values = spec.filter(list(groups[key]))
        _errors.refuse({"no_match": not values}, text=text, options=[*groups[key]])
    else:
        values = list(itertools.islice(override.sweep_string_iterator(), LARGEST_SWEEP + 1))
        _errors.refuse({"no_value": not values}, text=text)
    return [f"{override.get_key_element()}={value}" for value in values]


def refuse_hydra(key: str, where: str = "") -> None:
    """Reject a setting of Hydra itself, with DtkError; `where` names its file if it was not typed."""
    sweeps = re.fullmatch(r"hydra[./](launcher|sweeper)|hydra\.(launcher|sweeper|sweep)\..*|hydra\.mode", key)
    rules = {"hydra_sweep": sweeps, "hydra": key == "hydra" or key.startswith(("hydra.", "hydra/"))}
    _errors.refuse(rules, key=key, where=where, swept=SWEPT)
