"""Converts plain values to the typed Config and back, strictly: an unknown key or wrong type is a one-line error.

It runs after composing, so it also finds typos in YAML files and keys added by `+key=`. Rules between keys: `checks`.
"""

import dataclasses
import json
import math
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from diagnostics.contract.formatting import joined
from diagnostics.contract.suggest import did_you_mean
from dtk.config.schema import KINDS, Config
from dtk.errors import DtkError

MISSING = "???"  # Value in a YAML file for a key that the user must set.


def from_plain(plain: dict[str, Any]) -> Config:
    """Build the Config from nested plain values.

    Integers are accepted for floats; nothing else is converted. A missing key gets its default.

    DtkError for the first unknown key, wrong type, unknown choice or missing value.
    """
    config: Config = _build(Config, plain, "", plain)
    return config


def section_from_plain(cls: type, values: Any, path: str) -> Any:
    """Build a single section, as strictly as `from_plain`, which also tells what is raised."""
    return _build(cls, values, path, {path: values})


def to_plain(config: Config) -> dict[str, Any]:
    """Return nested dicts and lists with every key of every section, in the order of the schema."""
    return dataclasses.asdict(config)


def _build(cls: type, value: Any, path: str, plain: dict[str, Any]) -> Any:
    """Build a section from its values; `plain` is the whole configuration, for suggestions."""
    if not isinstance(value, dict):
        example = next(iter(get_type_hints(cls)))
        raise DtkError(f"{path}={_show(value)} is not a section with keys", fix=f"set a key: {path}.{example}=VALUE")
    hints = get_type_hints(cls)
    for key in value:
        if key not in hints:
            raise _unknown_key(f"{path}.{key}" if path else str(key), plain)
    values = {}
    for field in dataclasses.fields(cls):
        dotted = f"{path}.{field.name}" if path else field.name
        if field.name in value:
            has_kinds = cls is Config and field.name in KINDS
            hint = kind_of(field.name, value[field.name]) if has_kinds else hints[field.name]
            values[field.name] = _convert(value[field.name], hint, dotted, plain)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _missing(dotted, plain)
    return cls(**values)


def kind_of(section: str, value: Any) -> type:
    """Return the dataclass of a section of several kinds; DtkError if its discriminating key is missing or unknown."""
    tag, kinds = KINDS[section]
    if not isinstance(value, dict):
        fix = f"{tag} is one of {', '.join(kinds)}"
        raise DtkError(f"{section}={_show(value)} is not a section with keys", fix=fix)
    if tag not in value:
        raise DtkError(f"{section}.{tag} is required", fix=f"it is one of {', '.join(kinds)}")
    chosen = value[tag]
    if not isinstance(chosen, str) or chosen not in kinds:
        near = did_you_mean(str(chosen), kinds)
        raise DtkError(f"unknown {section}.{tag}={_show(chosen)}", fix=f"{near} options: {', '.join(kinds)}")
    return kinds[chosen]


def _convert(value: Any, hint: Any, path: str, plain: dict[str, Any]) -> Any:
    """Return the value if it has the type `hint`, with an int converted to an expected float; else raise DtkError."""
    if isinstance(value, str) and value == MISSING:
        raise _missing(path, plain)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, path, plain)
    origin = get_origin(hint)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong_type(value, hint, path)
        return [_convert(item, get_args(hint)[0], f"{path}[{i}]", plain) for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong_type(value, hint, path)
        for key in value:
            if not isinstance(key, str):
                raise DtkError(f"{path} has the key {_show(key)}, which is not text", fix="quote it")
        return {key: _convert(item, get_args(hint)[1], f"{path}.{key}", plain) for key, item in value.items()}
    if not _is(value, hint):
        raise _wrong_type(value, hint, path)
    members = _members(hint)
    return float(value) if type(value) is int and float in members and int not in members else value


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is(value: Any, hint: Any) -> bool:
    """Whether a scalar has the type, with no conversion except int to float."""
    members = _members(hint)
    if len(members) > 1:
        if type(None) in members and isinstance(value, str) and value.lower() == "none":
            return False
        return any(_is(value, member) for member in members)
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    return type(value) in (int, float) and math.isfinite(value) if hint is float else type(value) is hint


_KINDS = {str: "text", int: "a number", bool: "a yes or no", dict: "a section", list: "a list", type(None): "nothing"}
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def _describe(hint: Any) -> str:
    """Describe a type in words, such as `a whole number or null`."""
    names = []
    for member in _members(hint):
        if get_origin(member) is Literal:
            names += [str(choice) for choice in get_args(member)]
        elif get_origin(member) in (list, dict):
            kind, inner = get_origin(member).__name__, get_args(member)[-1]
            names.append(f"a {kind}" + (f" of {_describe(inner)}" if inner is not Any else ""))
        else:
            names.append(_NAMES[member])
    return joined(names, "or")


def _wrong_type(value: Any, hint: Any, path: str) -> DtkError:
    members = _members(hint)
    fix = ""
    if isinstance(value, str):
        choices = [str(c) for m in members if get_origin(m) is Literal for c in get_args(m)]
        if type(None) in members and value.lower() == "none":
            return DtkError(f"{path}={value} is text", fix=f"use null: {path}=null")
        fix = did_you_mean(value, choices, f"{path}=")
    elif str in members and isinstance(value, int | float):
        fix = f"""quote it: '{path}="{_show(value)}"'"""
    literal = any(get_origin(member) is Literal for member in members)
    kind = "" if literal or type(value) is float else f"{_KINDS.get(type(value), type(value).__name__)}, "
    return DtkError(f"{path}={_show(value)} is {kind}not {_describe(hint)}", fix=fix)


def _show(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _missing(path: str, plain: dict[str, Any]) -> DtkError:
    """Return the error for a missing value: `data.path is required: data=text data.path=FILE`."""
    section, _, key = path.partition(".")
    if not key:
        return DtkError(f"{path} is required", fix=f"the configuration needs the section {path}")
    tag = KINDS[section][0] if section in KINDS else "name"
    values = plain.get(section)
    name = (values.get("name") or values.get(tag)) if isinstance(values, dict) else None
    paths = {"path": "FOLDER" if section == "model" else "FILE"}
    example = paths.get(key, "my_package.MyModel" if key == "_target_" else "VALUE")
    return DtkError(f"{path} is required", f"{section}={name} {path}={example}" if name else f"{path}={example}")


def _unknown_key(path: str, plain: dict[str, Any]) -> DtkError:
    section, _, key = path.partition(".")
    if section in KINDS and key:
        tag, kinds = KINDS[section]
        owners = [name for name, cls in kinds.items() if key.split(".")[0] in get_type_hints(cls)]
        chosen = plain[section].get(tag)
        if owners:
            return DtkError(f"{path} belongs to {_choices(section, owners)}", f"this is {_choices(section, [chosen])}")
    existing = list(_keys_of(plain))
    every_kind = ((name, cls) for name, (_, kinds) in KINDS.items() for cls in kinds.values())
    others = [f"{name}.{k}" for name, cls in every_kind for k in get_type_hints(cls)]
    if not key:
        near = did_you_mean(path, existing) or did_you_mean(path, others)
    else:
        near = did_you_mean(path, [k for k in existing if k.startswith(f"{section}.")])
        elsewhere = dict.fromkeys(k for k in (*existing, *others) if k.partition(".")[2] == key)
        near = near or (f"did you mean {' or '.join(elsewhere)}?" if 0 < len(elsewhere) < 4 else "")
        near = near or did_you_mean(path, [k for k in (*existing, *others) if "." in k])
    return DtkError(f'unknown key "{path}"', fix=near or "--cfg prints every key")


def _choices(section: str, names: list[Any]) -> str:
    """Return `strategy=ddp or strategy=zero1`; models are distinguished by architecture."""
    label = "model.architecture" if section == "model" else section
    return " or ".join(f"{label}={name}" for name in names)


def _keys_of(plain: dict[str, Any]) -> Iterator[str]:
    for field in dataclasses.fields(Config):
        yield field.name
        hint: Any = get_type_hints(Config)[field.name]
        values = plain.get(field.name)
        if field.name in KINDS and isinstance(values, dict):
            tag, kinds = KINDS[field.name]
            hint = kinds.get(str(values.get(tag)), hint)
        if dataclasses.is_dataclass(hint):
            yield from (f"{field.name}.{name}" for name in get_type_hints(hint))
