"""`dtk show RUN --why KEY`: which file or override set a key, from the run's records."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import NewerSchemaError, RunPaths
from diagnostics.contract.formatting import clean, command
from diagnostics.contract.origins import Choice, Origins, Setting
from diagnostics.contract.suggest import did_you_mean
from diagnostics.report import document as doc
from diagnostics.runs.records import read_origins, reason
from dtk.console.output import rendered
from dtk.errors import DtkError

_LONGEST = 60  # Maximum characters of a value in a table.


def why(run: Path, key: str, *, as_json: bool) -> str:
    """Return which file or override set a key, or the keys of a section; DtkError if there is no record of it."""
    try:
        origins = read_origins(RunPaths(run).origins)
    except FileNotFoundError as error:
        what = f"{run} has no record of what set its keys"
        raise DtkError(what, "dtk run keeps one", f"{command('show', run)} shows the overrides") from error
    except NewerSchemaError as error:
        raise DtkError(f"{run} was written by a newer dtk", clean(error), "upgrade dtk") from error
    except (OSError, ValueError) as error:
        raise DtkError(f"{run}: origins.json is damaged", clean(reason(error))) from error
    keys = [name for name in origins.values if name == key or name.startswith(f"{key}.")]
    if not keys and key not in origins.choices:
        groups = {name.split(".")[0] for name in origins.values}
        near = did_you_mean(key, [*origins.values, *groups])
        raise DtkError(f'{run} has no key "{clean(key)}"', fix=near or f"{command('show', run)} --why train")
    if as_json:
        set_by = {name: [asdict(setting) for setting in origins.keys[name]] for name in keys}
        plain = {name: {"value": origins.values[name], "set_by": set_by[name]} for name in keys}
        choice = origins.choices.get(key.split(".")[0])
        return json.dumps({"keys": plain, "choice": asdict(choice) if choice else None}, indent=2) + "\n"
    return rendered(_key(origins, key) if keys == [key] else _section(origins, key, keys))


def _key(origins: Origins, key: str) -> doc.Document:
    """Return the value of a key, the setting that determines it, and overridden settings, newest first."""
    last, *overruled = reversed(origins.keys[key])
    fields = [doc.Field("set by", _place(last, origins))]
    if last.written and last.written != _value(origins.values[key]):
        fields.append(doc.Field("", f"written {last.written}"))
    for setting in overruled:
        was = f", which had {setting.written}" if setting.written else ""
        fields.append(doc.Field("over", f"{_place(setting, origins)}{was}"))
    return doc.Document("", f"{key} = {_value(origins.values[key])}", (doc.Fields(tuple(fields)),))


def _section(origins: Origins, key: str, keys: list[str]) -> doc.Document:
    choice = origins.choices.get(key)
    chosen = f"{key}={choice.option}: {choice.file}, chosen by {_chooser(choice)}" if choice else ""
    rows = []
    for name in keys:
        value = _value(origins.values[name])
        text = value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
        rows.append((name, text, _brief(origins.keys[name][-1])))
    return doc.Document("", chosen, (doc.table([("key", "value", "set by"), *rows], names=3),) if rows else ())


def _place(setting: Setting, origins: Origins) -> str:
    file = setting.by.rpartition(":")[0]
    chosen = next((choice for choice in origins.choices.values() if choice.file == file), None)
    by = f" (chosen by {_chooser(chosen)})" if setting.kind == "file" and chosen is not None else ""
    return _brief(setting) + by


def _brief(setting: Setting) -> str:
    return {
        "file": setting.by,
        "typed": f"{setting.by} on the command line",
        "default": "the default of dtk",
        "launch": "dtk at the launch, from ranks and devices",
        "run": f"the configuration of {setting.by}",
    }[setting.kind]


def _chooser(choice: Choice) -> str:
    return f"{choice.by} on the command line" if choice.kind == "typed" else choice.by


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
