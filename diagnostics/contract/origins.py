"""origins.json: which file or override set each key of a run, recorded at the launch, as conf/ may change later."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from diagnostics.contract.artifacts import SCHEMA_VERSION, NewerSchemaError
from diagnostics.contract.secrets import MASK, masked

Kind = Literal["file", "typed", "default", "launch", "run"]
LONGEST = 200  # Characters of a value as it was written; more does not help to find it.


@dataclass(frozen=True, slots=True)
class Setting:
    """One place that gave a key a value."""

    kind: Kind
    """`file`, `typed` on the command line, `default` of dtk's schema, `launch` (derived there from ranks and devices)
    or `run` (taken over from a run that did not say more)."""
    by: str = ""
    """`conf/experiment/smoke.yaml:7`, `train.steps=3`, or a run; empty where the kind says it all."""
    written: str = ""
    """The value as it stands there."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The file that was taken for a group."""

    option: str
    file: str
    kind: Kind
    by: str
    """What chose it: `strategy=ddp`, or the file that names it."""


@dataclass(slots=True)
class Origins:
    """Of all keys and groups of a configuration."""

    keys: dict[str, list[Setting]] = field(default_factory=dict)
    """Dotted key -> who set it, the one that counts last."""
    choices: dict[str, Choice] = field(default_factory=dict)
    """Group -> its file."""
    values: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> its value in the end."""


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, of nested mappings; an empty one is a value."""
    values: dict[str, Any] = {}
    for key, value in plain.items():
        name = f"{prefix}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return values


def at_key(plain: object, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key (`strategy.bucket_cap_mb`) of nested mappings."""
    for part in key.split("."):
        if not isinstance(plain, Mapping) or part not in plain:
            return default
        plain = plain[part]
    return plain


def add_typed(origins: Origins, key: str, text: str, removes: bool = False) -> None:
    """Add an override of a key, or of the section of that name.

    Args:
        origins: changed in place.
        key: dotted.
        text: as it was typed.
        removes: whether it takes the key away, so that it falls back to the schema's default.
    """
    for name in {key, *(name for name in origins.values if name.startswith(f"{key}."))}:
        settings = origins.keys.setdefault(name, [])
        settings.append(Setting("typed", text[:LONGEST]))
        if removes:
            settings.append(Setting("default", ""))


def at_launch(origins: Origins, plain: Mapping[str, Any]) -> Origins:
    """Return the origins with the values that a run begins with.

    Values that changed since composing are marked as derived at the launch.
    """
    values = flat(plain)
    keys = {}
    for key, value in values.items():
        settings = list(origins.keys.get(key) or [Setting("default", "")])
        changed = key not in origins.values or origins.values[key] != value
        keys[key] = [*settings, Setting("launch", "")] if changed else settings
    return Origins(keys, origins.choices, values)


def dumps(origins: Origins) -> str:
    """Content of origins.json: one line a key, to be read by people too. Secrets are masked."""
    keys = {}
    for key, value in origins.values.items():
        given = map(asdict, origins.keys.get(key, ()))
        settings = [{name: text for name, text in one.items() if text} for one in given]
        if (shown := masked(value, key)) != value:
            settings = [{**setting, "written": MASK} if "written" in setting else setting for setting in settings]
        keys[key] = masked({"value": shown, "set_by": settings})
    choices = {group: asdict(choice) for group, choice in origins.choices.items()}
    parts = [f'"schema_version": {SCHEMA_VERSION}', f'"choices": {_lines(choices)}', f'"keys": {_lines(keys)}']
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(content: bytes) -> Origins:
    """Read it back.

    Raises:
        NewerSchemaError: only a newer dtk can read it.
        ValueError: it is not what dtk wrote.
    """
    from msgspec import ValidationError, convert  # Here, as it costs every command its start.

    value = json.loads(content)
    try:
        if value["schema_version"] > SCHEMA_VERSION:
            raise NewerSchemaError(f"origins.json was written by a newer dtk (schema {value['schema_version']})")
        choices = convert(value["choices"], dict[str, Choice])
        keys = {key: convert(entry["set_by"], list[Setting]) for key, entry in value["keys"].items()}
        origins = Origins(keys, choices, {key: entry["value"] for key, entry in value["keys"].items()})
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ValueError("origins.json is not what dtk wrote") from error
    for key, settings in keys.items():
        if not settings:
            raise ValueError(f"origins.json names nobody who set {key[:LONGEST]}")
    return origins


def _lines(entries: Mapping[str, Any]) -> str:
    lines = (f"  {json.dumps(key)}: {json.dumps(value, default=str)}" for key, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}"
