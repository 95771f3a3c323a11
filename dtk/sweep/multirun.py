"""`dtk run -m`: the points are lists on the command line. All are composed and frozen before the first one runs."""

import argparse
from pathlib import Path

from diagnostics.contract.invocation import command
from dtk.config.compose import lists_of_files
from dtk.launch.prepare import compose_point, print_configuration
from dtk.sweep.folder import create, find
from dtk.sweep.points import combinations, freeze, take_repeats
from dtk.sweep.runner import Runner
from dtk.sweep.summary import print_ending

METHOD = "multirun"


def multirun(arguments: argparse.Namespace) -> int:
    """Run every combination `repeats=` times, and compare the runs; return the worst exit code, see `dtk.run.main`.

    Raises:
        DtkError: a point is invalid; none has run then.
    """
    given, repeats = take_repeats(arguments.overrides)
    config_dir, earlier, trust = arguments.config_dir, arguments.rerun, arguments.trust
    listed = [] if earlier is not None else lists_of_files(given, config_dir)
    combined = combinations([*listed, *given], config_dir)
    if arguments.cfg:
        for _, overrides in combined:
            print_configuration(compose_point(overrides, config_dir, earlier, trust=trust))
        return 0
    folders = {"config_dir": config_dir, "rerun": earlier}
    absolute = {name: None if path is None else str(path.absolute()) for name, path in folders.items()}
    source = {"overrides": given, **absolute}  # What makes two commands the same sweep.
    if arguments.resume:
        config = compose_point(combined[0][1], config_dir, earlier, trust=trust).composed.config
        sweep = find(Path(config.runs_folder), METHOD, source, repeats)
    else:  # Every point is frozen before the folder is made: what is wrong anywhere leaves nothing behind.
        points = [
            freeze(index, name, overrides, config_dir, earlier=earlier, trust=trust)
            for index, (name, overrides) in enumerate(combined)
        ]
        sweep = create(Path(points[0].config["runs_folder"]), METHOD, METHOD, source, repeats, points)
    options = ["--config-dir", str(config_dir)] if config_dir else []
    options += ["--rerun", str(earlier)] if earlier else []
    again = command("run", "-m", "--resume", *options, *arguments.overrides)
    try:
        total = len(sweep.points) * repeats
        code = Runner(sweep, config_dir, total).interleaved(sweep.points)
        print_ending(sweep, code, again, total)
    finally:
        sweep.close()
    return code
