"""`dtk sweep`: command-line options and output."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.contract.formatting import command
from dtk.console.output import print_line
from dtk.errors import Errors
from dtk.extras import require_training

if TYPE_CHECKING:
    from dtk.sweep.local import Job

_errors = Errors(__file__)


def run(arguments: argparse.Namespace) -> int:
    """Check the sweep file, then run the sweep here or pass it to W&B; return the worst exit code, see `dtk.run.main`.

    DtkError if the file or an option is invalid; nothing has been started or written then.
    """
    require_training("dtk sweep needs")
    from dtk.rank.job import started_by
    from dtk.sweep import local
    from dtk.sweep.summary import print_ending

    _errors.refuse({"started": started_by(os.environ)})
    job = _job(arguments)
    local.check(job)
    if arguments.wandb:
        return _hand_over(job, arguments)
    if arguments.dry_run:
        return _show(job)
    sweep = local.opened(job, resume=arguments.resume)
    for text in job.file.fixed:
        if text not in local.without_tracker(job.file.fixed):
            print_line(f"{text} of the file is only used by W&B's agent; add it to the command to use it here")
    count = ["--count", arguments.count] if arguments.count is not None else []
    config_dir = ["--config-dir", arguments.config_dir] if arguments.config_dir else []
    again = command("sweep", arguments.file, *arguments.overrides, *count, *config_dir, "--resume")
    try:
        code = local.run(job, sweep)
        print_ending(sweep, code, again, local.total_runs(job, sweep), job.file.metric)
    finally:
        sweep.close()
    return code


def _job(arguments: argparse.Namespace) -> "Job":
    from dtk.config.overrides import parse
    from dtk.sweep.file import read
    from dtk.sweep.folder import take_repeats
    from dtk.sweep.local import Job
    from dtk.sweep.search import load

    extra, repeats = take_repeats(arguments.overrides)
    for text in extra:
        override = parse(text)
        _errors.refuse({"several": override.is_sweep_override()}, text=text, key=override.key_or_group)
    file = read(_find(arguments.file, arguments.config_dir))
    cap = arguments.count if arguments.count is not None else file.run_cap
    return Job(file, load(file), extra, repeats, cap, arguments.config_dir)


def _find(name: str, config_dir: Path | None) -> Path:
    """Find the sweep file for a path, or for the name of a file in `sweep/` of the configuration folders."""
    from diagnostics.contract.suggest import did_you_mean
    from dtk.config.folders import SWEEPS, search_path

    path = Path(name)
    if os.path.isfile(name):  # noqa: PTH113 - False for names that no file system accepts
        return path
    folders = [folder / SWEEPS for folder in search_path(config_dir)]
    named = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*.yaml"))}
    if name in named:
        return named[name]
    if os.path.exists(name):  # noqa: PTH110 - reading it raises the error
        return path
    near = did_you_mean(path.stem, named) or f"sweeps in conf/sweep: {', '.join(sorted(named))}"
    raise _errors("no_file", name=name, near=near)


def _hand_over(job: "Job", arguments: argparse.Namespace) -> int:
    from dtk.sweep import local
    from dtk.sweep.server import check_server, hand_over

    _errors.refuse({"resume": arguments.resume})
    check_server(job)
    points = local.grid_points(job) if job.file.method == "grid" else []
    if arguments.dry_run:
        return _show(job)
    print_line(f"checked {len(points)} points" if points else "checked every value")
    return hand_over(job, arguments.count)


def _show(job: "Job") -> int:
    from diagnostics.contract.formatting import counted
    from dtk.sweep import local

    if job.file.method == "grid":
        points = local.grid_points(job)
        print_line(f"{counted(len(points) * job.repeats, 'run')}, {job.repeats} of each point:")
        for point in points:
            print_line(f"  {point.name or 'unchanged'}")
        return 0
    print_line(f"at most {counted(job.cap or 0, 'run')}, chosen one by one ({job.file.method}) from:")
    for key, space in job.file.parameters.items():
        print_line(f"  {key}: {', '.join(f'{kind} {value}' for kind, value in space.items())}")
    return 0
