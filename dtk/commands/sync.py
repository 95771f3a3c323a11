"""`dtk sync`: uploads a recorded run, or the runs of a sweep, to a tracker. Never loads torch."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.runs.find import RUNS
from diagnostics.runs.records import as_mapping, mapping
from dtk.config.trust import check_entries, check_owner
from dtk.console import output
from dtk.errors import Errors, refused
from dtk.runs.find import find_readable

if TYPE_CHECKING:
    from dtk.sweep.folder import Sweep

_errors = Errors(__file__)


def run(arguments: argparse.Namespace) -> int:
    """Upload the records; return 0 if the tracker accepted everything; DtkError if run or tracker cannot be used."""
    from dtk.sweep.folder import opened

    if (sweep := opened(arguments.run, RUNS)) is not None:
        _sweep(sweep, arguments)
    else:
        _hand_over(RunPaths(Path(find_readable(arguments.run).path)), arguments)
    return 0


def _sweep(sweep: "Sweep", arguments: argparse.Namespace) -> None:
    """Upload the runs that W&B does not have yet, and save a report of all of them there."""
    from dtk.sweep.server import save
    from dtk.sweep.summary import last_trials

    runs = [RunPaths(trial.run) for trial in last_trials(sweep) if trial.run is not None]
    _errors.refuse({"no_run": not runs}, sweep=sweep.about.id)
    for paths in runs:
        if any(paths.root.glob("wandb/run-*")) and arguments.tracker != "tensorboard" and not arguments.offline:
            chosen = _tracker(paths, arguments, sweep.about.id)[0]
            output.put(f"{paths.root.name}: {chosen.name} already has it\n")
        else:
            chosen = _hand_over(paths, arguments, sweep.about.id)
    if chosen.name != "wandb":
        return
    if any(paths.root.glob("wandb/offline-run-*")) and not any(paths.root.glob("wandb/run-*")):
        output.put("no report of the sweep: only W&B's server keeps one, and these runs are offline\n")
        return
    output.put(f"side by side: {save(sweep, chosen.project, chosen.entity, chosen.x_axis)}\n")


def _tracker(paths: RunPaths, arguments: argparse.Namespace, group: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the section `tracker` to use, and the run's configuration; DtkError if it has no usable tracker."""
    from diagnostics.evidence.limits import Limits, load_yaml, whole
    from dtk.config.schema import KINDS
    from dtk.config.strict import section_from_plain
    from dtk.record.trackers import check_tracker

    check_owner(paths.root, "dtk sync", trust=arguments.trust)
    check_entries(paths.root, "dtk sync", trust=arguments.trust)  # Following a link would upload its target.
    with refused(f"{paths.config} cannot be read", "", ValueError):
        config = as_mapping(load_yaml(whole(paths.config, Limits()), Limits()))
    stored = as_mapping(config.get("tracker"))
    name = arguments.tracker or stored.get("name")
    if name not in ("wandb", "tensorboard"):
        raise _errors("no_tracker")
    typed = {key: getattr(arguments, key) for key in ("project", "entity", "group") if getattr(arguments, key)}
    typed |= {"mode": "offline"} if arguments.offline else {}
    stored_keys = stored if stored.get("name") == name else {}
    section = {**stored_keys, **(typed if name == "wandb" else {}), "name": name}
    if name == "wandb" and group is not None:
        section["group"] = section.get("group") or group
    chosen = section_from_plain(KINDS["tracker"][1][name], section, "tracker")
    check_tracker(chosen)
    return chosen, config


def _hand_over(paths: RunPaths, arguments: argparse.Namespace, group: str | None = None) -> Any:
    from dtk.record.trackers import Tracker, offline_logs

    chosen, config = _tracker(paths, arguments, group)
    figures = as_mapping(mapping(str(paths.summary), []).get("figures"))
    code = mapping(str(paths.status), []).get("exit_code")
    before = offline_logs(paths.root)
    tracker = Tracker(SimpleNamespace(tracker=chosen, own=config), paths.root.absolute())
    code, count = tracker.replay(_records(paths.metrics), figures, code, arguments.timeout_s)
    if code:
        row = "late" if code < 0 else "not_accepted"
        raise _errors(row, tracker=chosen.name, run=paths.root.name, limit_s=arguments.timeout_s)
    logs = [log for log in offline_logs(paths.root) if log not in before]
    upload_later = "".join(f"\nto upload it: wandb sync {log}" for log in logs)
    done = "written to" if logs or chosen.name != "wandb" else "uploaded to"
    where = f"offline files of {chosen.name}" if logs else chosen.name
    output.put(f"{paths.root.name}: {count:,} records {done} {where}{upload_later}\n")
    return chosen


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield metrics in step order; for a step recorded by several attempts, yield those of the latest attempt."""
    from diagnostics.evidence.limits import Limits, lines_of
    from diagnostics.runs.records import latest_records

    with refused(f"{path} cannot be read", "", ValueError):
        for _, record in latest_records(lambda: lines_of(path, Limits())):
            yield record
