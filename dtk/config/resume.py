"""`resume=runs/<id>` and `--rerun RUN`: the configuration of that run, with the changes that are allowed."""

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import NewerSchemaError, RunPaths, complete_checkpoints, read_status
from diagnostics.contract.invocation import typed
from diagnostics.contract.origins import at_key
from diagnostics.evidence.job.run_folder import last_attempt
from diagnostics.runs.find import RUNS, NoSuchRunError, find_run
from diagnostics.runs.processes import still_runs
from diagnostics.runs.records import mapping
from dtk.config.checkpoint_files import refuse_damaged
from dtk.config.compose import Composed
from dtk.config.overrides import parse
from dtk.config.stored import change, read_stored
from dtk.config.trust import WRITTEN, check_entries, check_owner, refuse_stored_code
from dtk.errors import Errors

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

    Raises:
        DtkError: no such run, a run still running, a damaged folder or checkpoint, an override that may not change, a
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
    untrusted folder must not decide where files are written.

    Raises:
        DtkError: no such run, a damaged folder, an override that does not fit, a folder of somebody else without
            `trust`, or a setting of the folder that would execute something.
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
