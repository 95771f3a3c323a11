"""`dtk run -m`: the points are lists on the command line. All are composed and frozen before the first one runs."""

import argparse
from pathlib import Path

from diagnostics.contract.invocation import command
from dtk.launch.prepare import compose_point, print_configuration
from dtk.sweep.folder import Sweep, create, find
from dtk.sweep.points import combinations, freeze, take_repeats
from dtk.sweep.runner import Runner
from dtk.sweep.summary import say_ending

METHOD = "multirun"


def multirun(arguments: argparse.Namespace) -> int:
    """Run every combination, `repeats=` times, and compare.

    Args:
        arguments: of `dtk run`: overrides, config_dir, rerun, cfg, resume.

    Returns:
        the worst exit code of the runs, see `dtk.run.main`.

    Raises:
        DtkError: anything wrong in any point; then none has run.
    """
    given, repeats = take_repeats(arguments.overrides)
    config_dir: Path | None = arguments.config_dir
    if arguments.cfg:
        for _, overrides in combinations(given, config_dir):
            print_configuration(compose_point(overrides, config_dir, arguments.rerun, trust=arguments.trust))
        return 0
    sweep = _again(given, repeats, arguments) if arguments.resume else _new(given, repeats, arguments)
    try:
        total = len(sweep.points) * repeats
        code = Runner(sweep, config_dir, total).interleaved(sweep.points)
        say_ending(sweep, code, _command(arguments), total)
    finally:
        sweep.close()
    return code


def _new(given: list[str], repeats: int, arguments: argparse.Namespace) -> Sweep:
    """Freeze every point, then make the sweep's folder: what is wrong anywhere leaves nothing behind."""
    points = [
        freeze(index, name, overrides, arguments.config_dir, earlier=arguments.rerun, trust=arguments.trust)
        for index, (name, overrides) in enumerate(combinations(given, arguments.config_dir))
    ]
    runs_folder = Path(points[0].config["runs_folder"])
    return create(runs_folder, METHOD, METHOD, _source(given, arguments), repeats, points)


def _again(given: list[str], repeats: int, arguments: argparse.Namespace) -> Sweep:
    """Resume the newest sweep of the same command, with its points as they were frozen."""
    _, first = combinations(given, arguments.config_dir)[0]
    point = compose_point(first, arguments.config_dir, arguments.rerun, trust=arguments.trust)
    runs_folder = Path(point.composed.config.runs_folder)
    return find(runs_folder, METHOD, _source(given, arguments), repeats)


def _source(given: list[str], arguments: argparse.Namespace) -> dict[str, object]:
    """Return what makes two commands the same sweep."""
    folders = {"config_dir": arguments.config_dir, "rerun": arguments.rerun}
    absolute = {name: None if path is None else str(path.absolute()) for name, path in folders.items()}
    return {"overrides": given, **absolute}


def _command(arguments: argparse.Namespace) -> str:
    """Return the same command with `--resume`."""
    options = [
        *(["--config-dir", str(arguments.config_dir)] if arguments.config_dir else []),
        *(["--rerun", str(arguments.rerun)] if arguments.rerun else []),
    ]
    return command("run", "-m", "--resume", *options, *arguments.overrides)
