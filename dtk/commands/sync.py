"""`dtk sync RUN`: hands what a run recorded to a tracker, after the run. Loads torch never."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.runs.records import reason
from dtk.config.trust import check_entries, check_owner
from dtk.console import output
from dtk.errors import DtkError
from dtk.runs.find import RUN_HELP, find_readable

VALUES = {"run_help": RUN_HELP}


def run(arguments: argparse.Namespace) -> int:
    """Start the tracker's process and feed it; 0 = it took everything.

    Raises:
        DtkError: no such run or tracker, or the run cannot be read.
    """
    from diagnostics.evidence import safe_yaml
    from diagnostics.evidence.limits import Limits, whole
    from diagnostics.runs.records import as_mapping, mapping
    from dtk.config.schema import KINDS
    from dtk.config.strict import section_from_plain
    from dtk.record.trackers import Tracker, check_tracker, offline_logs

    paths = RunPaths(Path(find_readable(arguments.run).path))
    check_owner(paths.root, "dtk sync", trust=arguments.trust)
    check_entries(paths.root, "dtk sync", trust=arguments.trust)  # What a link leads to would be sent.
    with _readable(paths.config):
        config = as_mapping(safe_yaml.loads(whole(paths.config, Limits()), Limits()))
    stored = as_mapping(config.get("tracker"))
    name = arguments.tracker or stored.get("name")
    if name not in ("wandb", "tensorboard"):
        raise DtkError("the run has no tracker", fix="name one: --tracker wandb")
    typed = {key: getattr(arguments, key) for key in ("project", "entity", "group") if getattr(arguments, key)}
    typed |= {"mode": "offline"} if arguments.offline else {}
    section = {**(stored if stored.get("name") == name else {}), **(typed if name == "wandb" else {}), "name": name}
    chosen = section_from_plain(KINDS["tracker"][1][name], section, "tracker")
    check_tracker(chosen)
    summary, ended = (mapping(str(path), []) for path in (paths.summary, paths.status))
    tracker = Tracker(SimpleNamespace(tracker=chosen, own=config), paths.root.absolute())
    code, count = tracker.replay(_records(paths.metrics), as_mapping(summary.get("figures")), ended.get("exit_code"))
    if code:
        why, fix = "its message stands above", "metrics.jsonl is as it was: try again"
        raise DtkError(f"{name} did not take the run", why, fix)
    kept = "".join(f"\nto send it: wandb sync {log}" for log in offline_logs(paths.root)[-1:] if name == "wandb")
    output.put(f"{paths.root.name}: {count:,} records handed to {name}{kept}\n")
    return 0


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the metrics in order of steps; of a step that several attempts made those of the latest."""
    from diagnostics.evidence.limits import Limits, lines_of
    from diagnostics.runs.records import first_steps, logged_steps, made_again

    with _readable(path):
        starts = first_steps((attempt, step) for attempt, step, _ in logged_steps(lines_of(path, Limits())))
        for attempt, step, record in logged_steps(lines_of(path, Limits())):
            if not made_again(attempt, step, starts):
                yield record


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DtkError(f"{path} cannot be read", reason(error)) from error
