"""`resume=runs/<id>` and `--rerun RUN`: the configuration stored in that run, with the changes that are allowed."""

import contextlib
import copy
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import NewerSchemaError, RunPaths, complete_checkpoints, read_status
from diagnostics.contract.files import read_record
from diagnostics.contract.formatting import command, typed
from diagnostics.contract.origins import Origins, Setting, add_typed, at_key, flat
from diagnostics.evidence.job.run_folder import last_attempt
from diagnostics.evidence.limits import Limits
from diagnostics.runs.find import RUNS, NoSuchRunError, find_run, still_runs
from diagnostics.runs.records import mapping, read_origins
from dtk.config.checkpoint_files import refuse_damaged
from dtk.config.compose import Composed, compose, make_absolute
from dtk.config.folders import groups, preset_sections, search_path
from dtk.config.overrides import parse
from dtk.config.strict import from_plain, to_plain
from dtk.config.trust import WRITTEN, check_entries, check_owner, refuse_stored_code
from dtk.errors import DtkError, Errors

_errors = Errors(__file__)
FIXED = ("model", "data", "task", "seed", "train.global_batch_size")
"""Keys that cannot change, as it would no longer be the same experiment."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A composed point, and the run folder that it continues, if any."""

    composed: Composed
    paths: RunPaths | None
    attempt: int
    earlier: Path | None = None
    """The run folder whose configuration is rerun."""


def resume(composed: Composed, config_dir: Path | None, *, trust: bool = False) -> Resumed:
    """Apply the new overrides to the stored configuration.

    DtkError for no such run, a run still running, a damaged folder or checkpoint, an override that may not change, a
    folder of somebody else, or a setting of the folder that would execute something.
    """
    run = Path(str(composed.config.resume))
    if not run.exists() and run.parent == Path.cwd():  # Not a path, but `last` or the beginning of a run id.
        with contextlib.suppress(NoSuchRunError):
            run = find_run(run.name, Path(composed.config.runs_folder))
    run = _of_checkpoint(run)
    paths = RunPaths(run)
    option = f"resume={paths.root}"
    check_owner(paths.root, option, trust=trust)
    check_entries(paths.root, option, trust=trust)
    stored = read_stored(paths, option)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # Not the record of a run that can continue.
        try:
            status, manifest = read_status(paths.status), mapping(str(paths.manifest), [])
        except NewerSchemaError as error:
            raise _errors("newer", option=option) from error
        if status.state == "running" and (pid := manifest.get("pid")) != os.getpid() and still_runs(manifest):
            # Two launches in one folder would overwrite each other.
            raise _errors("running", run=paths.root.name, pid=pid)
    new = [override for override in composed.overrides if not override.lstrip("+~").startswith("resume=")]
    given = [override.lstrip("+~").split("=")[0] for override in new]
    if "train.steps" in given:
        stored = stored.with_train(epochs=None)
    stored = replace(stored, config=replace(stored.config, resume=str(paths.root)))
    before = stored.plain
    # A setting that the user's configuration has too, such as a sweep trial's, is not the folder's choice.
    own = [key for key in WRITTEN if at_key(composed.plain, key) == at_key(before, key)]
    again = _as_data(stored, new, config_dir, option, own)
    now = again.plain
    given = [key for key in given if at_key(before, key) != at_key(now, key)]  # Not a repeated value.
    for fixed in FIXED:
        if changed := [key for key in given if f"{key}.".startswith(f"{fixed}.")]:
            raise _errors("fixed", key=max(changed, key=len))
    was, optimizer = stored.config.optimizer.name, again.config.optimizer.name
    _errors.refuse({"optimizer": was != optimizer}, before=was, now=optimizer)
    if again.config.train.epochs is None:  # Otherwise the samples must be counted first.
        check_continuable(paths, again.config.train.steps)
    return Resumed(again, paths, next_attempt(paths))


def _of_checkpoint(path: Path) -> Path:
    """Return the run of a path that may be its newest checkpoint, from which a run continues anyway; DtkError if the
    checkpoint is not the newest: later ones and their metrics would be overwritten.
    """
    paths = RunPaths(path.parent.parent)
    if path.parent != paths.checkpoints or path not in (complete := complete_checkpoints(paths)):
        return path
    if path != complete[-1]:
        later = str(typed(paths.checkpoints / "later"))
        newer = [str(typed(folder)) for folder in complete[complete.index(path) + 1 :]]
        aside = f"{shlex.join(['mkdir', later])} && {shlex.join(['mv', *newer, later])}"
        raise _errors("not_newest", path=path, newest=complete[-1].name, aside=aside)
    return paths.root


def rerun(run: Path, new: list[str], config_dir: Path | None, *, trust: bool = False) -> Resumed:
    """Return the configuration of a run for a new run.

    The new run is written next to that run if the user's configuration agrees, else to the default runs folder: an
    untrusted folder must not decide where files are written. DtkError if no such run, a damaged folder, an override
    that does not fit, a folder of somebody else without `trust`, or a setting of it that would execute something.
    """
    option = f"--rerun {run}"
    check_owner(run, option, trust=trust)
    stored = read_stored(RunPaths(run), option)
    # Another folder than its own: the run was moved, or its stored folder is not the user's choice.
    beside = Path(stored.config.runs_folder) == run.absolute().parent
    runs_folder = stored.config.runs_folder if beside else str(RUNS.absolute())
    stored = replace(stored, config=replace(stored.config, resume=None, runs_folder=runs_folder))
    again = _as_data(stored, new, config_dir, option)
    _errors.refuse({"both": again.config.resume})
    return Resumed(again, None, 0, run)


def _as_data(
    stored: Composed, new: list[str], config_dir: Path | None, option: str, own: Sequence[str] = ()
) -> Composed:
    """Return the stored configuration with overrides applied; code and folders in it must be confirmed by the user."""
    stored = replace(stored, config=replace(stored.config, allow_targets=[]))
    again = change(stored, new, config_dir)
    given = [*own, *(parse(text).key_or_group.lstrip("+") for text in new)]
    refuse_stored_code(stored.plain, again.plain, given, option)
    return again


def refuse_other_data(paths: RunPaths, data: dict[str, Any]) -> None:
    """Reject a resume with different data; DtkError if the hash of the data differs."""
    before = at_key(mapping(str(paths.manifest), []), "data.sha256")
    if before is not None and before != (now := data.get("sha256")):
        raise _errors("data", before=str(before)[:12], now=str(now)[:12])


def earlier_argv(paths: RunPaths) -> list[Any]:
    """Return the command lines of all attempts so far, oldest first, so that the manifest keeps them."""
    manifest = mapping(str(paths.manifest), [])
    earlier = manifest.get("earlier_argv", [])
    return [*earlier, manifest["argv"]] if isinstance(earlier, list) and "argv" in manifest else []


def check_continuable(paths: RunPaths, steps: int) -> None:
    """Make sure that a run can go on; DtkError if all steps are done, or the newest checkpoint is damaged."""
    if not (complete := complete_checkpoints(paths)):
        return
    step = int(complete[-1].name.removeprefix("step_"))
    # No step would run, and the existing summary would be overwritten.
    _errors.refuse({"done": step >= steps}, run=paths.root.name, step=step, steps=steps, more=2 * step)
    refuse_damaged(complete[-1])


def next_attempt(paths: RunPaths) -> int:
    """Return the number of the next attempt."""
    last = last_attempt(paths.root)
    with contextlib.suppress(OSError, ValueError):
        last = max(last, read_status(paths.status).attempt)
    return last + 1


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

    A choice (`strategy=ddp`) replaces the sections of its file; any other key (`train.steps=20`) only itself. DtkError
    if an option, key or value is unknown, or an experiment is given, which is many choices at once.
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
