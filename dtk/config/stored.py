"""The configuration stored in a run folder, and changed copies of it, for `resume=` and `--rerun`."""

import copy
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import read_record
from diagnostics.contract.invocation import command
from diagnostics.contract.origins import Origins, Setting, add_typed, flat
from diagnostics.evidence.limits import Limits
from diagnostics.runs.records import read_origins
from dtk.config.compose import Composed, compose, make_absolute
from dtk.config.folders import groups, preset_sections, search_path
from dtk.config.overrides import parse
from dtk.config.strict import from_plain, to_plain
from dtk.errors import DtkError, Errors

_errors = Errors(__file__)


def read_stored(paths: RunPaths, option: str) -> Composed:
    """Return a run's configuration, overrides and origins of keys; DtkError if the folder is not a dtk run.

    If the run has no record of the origins, they are the run itself.
    """
    from diagnostics.evidence.limits import load_yaml  # Loads PyYAML, which `dtk run` needs only for a stored run.

    said = {"option": option, "ls": command("ls")}
    _errors.refuse({"no_folder": not paths.root.is_dir()}, **said)
    try:
        stored = load_yaml(read_record(paths.config, follow=False), Limits())
        typed = load_yaml(read_record(paths.overrides, follow=False), Limits())
        if not isinstance(stored, dict) or not isinstance(typed, list) or not all(isinstance(o, str) for o in typed):
            raise ValueError("config.yaml or overrides.yaml is not what dtk wrote")
        config = from_plain(stored)
    except OSError as error:
        is_deepspeed = paths.root.name.startswith("global_step") or any(paths.root.glob("global_step*"))
        why = f"{Path(error.filename or paths.config).name}: {error.strerror}"
        raise _errors("deepspeed" if is_deepspeed else "no_run", **said, why=why) from error
    except (ValueError, DtkError) as error:
        raise _errors("damaged", **said, why=" ".join(str(error).split())) from error
    try:
        origins = read_origins(paths.origins)
    except (OSError, ValueError):  # The error message is complete.
        values = flat(to_plain(config))
        origins = Origins({key: [Setting("run", paths.root.name)] for key in values}, values=values)
    return Composed(config, [text for text in typed if not text.startswith("resume=")], origins)


def change(stored: Composed, new: list[str], config_dir: Path | None) -> Composed:
    """Return the stored configuration with overrides in Hydra's grammar applied.

    A choice (`strategy=ddp`) replaces the sections of its file; any other key (`train.steps=20`) only itself.

    Raises:
        DtkError: an option, key or value is unknown, or an experiment is given, which is many choices at once.
    """
    plain, origins = stored.plain, copy.deepcopy(stored.origins)
    options = groups(search_path(config_dir))
    parsed = [(text, parse(text)) for text in new]
    chosen_groups = {override.key_or_group for _, override in parsed if override.key_or_group in options}
    # Together with the keys of the same sections, as some options (model=custom) require a key.
    sections_of_choices = {*chosen_groups, "allow_targets"}
    choices = [
        text for text, override in parsed if override.key_or_group.lstrip("+").split(".")[0] in sections_of_choices
    ]
    _errors.refuse({"experiment": any(override.key_or_group == "experiment" for _, override in parsed)})
    chosen = compose(choices, config_dir, traced=True) if chosen_groups else None
    chosen_plain = {} if chosen is None else chosen.plain
    for text, override in parsed:
        key = override.key_or_group.lstrip("+")
        _errors.refuse({"form": override.is_delete() or override.is_sweep_override()}, text=text)
        if key in options and chosen is not None:
            for section in (key, *preset_sections(options[key].get(str(override.value())))):
                plain[section] = chosen_plain[section]
                inside = f"{section}."
                origins.keys = {name: by for name, by in origins.keys.items() if not name.startswith(inside)}
                origins.keys |= {name: by for name, by in chosen.origins.keys.items() if name.startswith(inside)}
                if section in chosen.origins.choices:
                    origins.choices[section] = chosen.origins.choices[section]
        else:
            *sections, name = key.split(".")
            target = plain
            for part in sections:  # The strict check decides whether the key exists.
                target = target.setdefault(part, {})
                _errors.refuse({"no_section": not isinstance(target, dict)}, key=key, part=part)
            target[name] = override.value()
            make_absolute(plain, key)
            add_typed(origins, key, text)
    keys = {override.key_or_group for _, override in parsed}
    earlier = [text for text in stored.overrides if parse(text).key_or_group not in keys]
    composed = Composed(from_plain(plain), [*earlier, *new], origins)
    origins.values = flat(composed.plain)
    return composed
