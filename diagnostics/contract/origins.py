"""origins.json: the file or override that set each key of a run, recorded at launch, as conf/ may change later."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from diagnostics.contract.artifacts import SCHEMA_VERSION, NewerSchemaError
from diagnostics.contract.secrets import MASK, masked

Kind = Literal["file", "typed", "default", "launch", "run"]
LONGEST = 200  # Stored characters of a value as written; enough to find it.


@dataclass(frozen=True, slots=True)
class Setting:
    """One assignment of a key."""

    kind: Kind
    """`file`, `typed` on the command line, `default` of dtk's schema, `launch` (derived at launch from ranks and
    devices) or `run` (inherited from a run without more details)."""
    by: str = ""
    """`conf/experiment/smoke.yaml:7`, `train.steps=3`, or a run; empty if `kind` is sufficient."""
    written: str = ""
    """The value as written there."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected file of a group."""

    option: str
    file: str
    kind: Kind
    by: str
    """What selected it: `strategy=ddp`, or the file that names it."""


@dataclass(slots=True)
class Origins:
    """Origins of all keys and groups of a configuration."""

    keys: dict[str, list[Setting]] = field(default_factory=dict)
    """Dotted key -> its assignments; the last one applies."""
    choices: dict[str, Choice] = field(default_factory=dict)
    """Group -> its selected file."""
    values: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> final value."""


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted key -> value; an empty mapping is a value."""
    values: dict[str, Any] = {}
    for key, value in plain.items():
        name = f"{prefix}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return values


def at_key(plain: object, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key (`strategy.bucket_cap_mb`) in nested mappings."""
    for part in key.split("."):
        if not isinstance(plain, Mapping) or part not in plain:
            return default
        plain = plain[part]
    return plain


def add_typed(origins: Origins, key: str, text: str, removes: bool = False) -> None:
    """Add an override of a key or section to `origins` in place; `removes` deletes the key: back to its default."""
    for name in {key, *(name for name in origins.values if name.startswith(f"{key}."))}:
        settings = origins.keys.setdefault(name, [])
        settings.append(Setting("typed", text[:LONGEST]))
        if removes:
            settings.append(Setting("default", ""))


def at_launch(origins: Origins, plain: Mapping[str, Any]) -> Origins:
    """Return the origins of the values at launch; those changed after composition are derived at the launch."""
    values = flat(plain)
    keys = {}
    for key, value in values.items():
        settings = list(origins.keys.get(key) or [Setting("default", "")])
        changed = key not in origins.values or origins.values[key] != value
        keys[key] = [*settings, Setting("launch", "")] if changed else settings
    return Origins(keys, origins.choices, values)


def dumps(origins: Origins) -> str:
    """Return the content of origins.json: one line per key, readable by people. Secrets are masked."""
    keys = {}
    for key, value in origins.values.items():
        given = map(asdict, origins.keys.get(key, ()))
        settings = [{name: text for name, text in setting.items() if text} for setting in given]
        if (masked_value := masked(value, key)) != value:
            settings = [{**setting, "written": MASK} if "written" in setting else setting for setting in settings]
        keys[key] = masked({"value": masked_value, "set_by": settings})
    choices = {group: asdict(choice) for group, choice in origins.choices.items()}
    parts = [f'"schema_version": {SCHEMA_VERSION}', f'"choices": {_lines(choices)}', f'"keys": {_lines(keys)}']
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(content: bytes) -> Origins:
    """Parse the content of origins.json; NewerSchemaError if it requires a newer dtk, ValueError if it is invalid."""
    from msgspec import ValidationError, convert  # Imported here, as it would slow down the start of every command.

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
            raise ValueError(f"origins.json does not say what set {key[:LONGEST]}")
    return origins


def _lines(entries: Mapping[str, Any]) -> str:
    lines = (f"  {json.dumps(key)}: {json.dumps(value, default=str)}" for key, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}"
