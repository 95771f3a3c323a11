"""`python -m dtk.run`: compose -> check -> run folder -> launch. The only place that calls Hydra.

The parent composes once; ranks get a folder with the resolved configuration. Under torchrun and
srun the ranks exist already: rank 0 composes and shares.
"""

import argparse
import dataclasses
import gc
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.invocation import command
from dtk.config import help as config_help
from dtk.config.batch import settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import Composed, compose, without_reasons
from dtk.config.instantiate import check_target
from dtk.config.resume import Resumed, earlier_argv, refuse_other_data, rerun, resume
from dtk.config.schema import CustomModelConfig
from dtk.console.help_text import HelpFormatter
from dtk.errors import USER_ERROR, DtkError
from dtk.extras import import_torch, require_training

if TYPE_CHECKING:
    from dtk.launch.placement import Placement

FAILED = 1
"""Exit code when a preflight refuses to launch, as when a rank fails."""
INTERRUPTED = 130
"""Exit code after Ctrl-C before the run has begun; once it has, `dtk.launch.stopping` says more."""


def main(argv: list[str] | None = None) -> int:
    """Parse, run, and turn problems of the user's making into one line.

    Returns:
        0 finished, 1 a rank failed, 2 wrong input; 129, 130 or 143 stopped by a signal, with a checkpoint.
    """
    gc.disable()  # What importing torch and Hydra makes lives to the end: walking it is a third of the start.
    try:
        return _main(_parse(sys.argv[1:] if argv is None else argv))
    except DtkError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"dtk: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("dtk: stopped before the first step", file=sys.stderr)
        return INTERRUPTED
    finally:
        gc.enable()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """An unknown option is one line like every other wrong input, without the usage above it."""
        raise DtkError(message, fix=command("run", "--help"))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="dtk run",
        description="Train a model under a parallel strategy and leave a run folder.",
        epilog=config_help.help_text(),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="what differs from conf/config.yaml")
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of a,b lists, one after another"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -m: go on with the newest sweep of this command, skip what is done"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder of your own YAML files, searched before dtk's")
    parser.add_argument(
        "--rerun", metavar="RUN", help="take the configuration of that run instead of conf/ (dtk rerun RUN)"
    )
    parser.add_argument("--strict", action="store_true", help="with --rerun: refuse if the code is not what it was")
    parser.add_argument("--dry-run", action="store_true", help="check everything and print the job; start nothing")
    parser.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    return parser.parse_intermixed_args(argv)


def _main(arguments: argparse.Namespace) -> int:
    require_training("dtk run needs")
    import_torch()
    if arguments.rerun is not None:
        from dtk.commands.rerun import earlier_run

        arguments.rerun = earlier_run(arguments.rerun, strict=arguments.strict)
    elif arguments.strict:
        raise DtkError("--strict compares the code with that of a run", fix="add --rerun RUN")
    from dtk.launch.cluster import started_by

    if started_by(os.environ) is not None and not arguments.cfg:
        if arguments.multirun:
            raise DtkError("-m runs jobs one after another by itself", "under torchrun or srun there is one", "drop -m")
        from dtk.rank_zero import join_job

        return join_job(arguments)
    if arguments.multirun:
        if arguments.dry_run:
            raise DtkError("--dry-run prints one job", "-m makes several", "drop -m")
        from dtk.sweep.multirun import multirun

        return multirun(arguments)
    if arguments.resume:
        raise DtkError("--resume goes on with a sweep", "this is no sweep", "add -m; one run goes on by resume=RUN")
    point = compose_point(arguments.overrides, arguments.config_dir, arguments.rerun)
    if arguments.cfg:
        print_configuration(point)
        return 0
    return run_point(*place_point(point), dry_run=arguments.dry_run)


def print_configuration(point: Resumed) -> None:
    """What `--cfg` shows of a point."""
    import yaml

    print(yaml.safe_dump(point.composed.plain, sort_keys=False), end="")


def compose_point(overrides: list[str], config_dir: Path | None, earlier: Path | None = None) -> Resumed:
    """One point from what was typed for it, checked as far as that goes without knowing the ranks.

    Args:
        overrides: in Hydra's grammar.
        config_dir: the user's own YAML files.
        earlier: a run folder whose configuration is taken instead of conf/.

    Raises:
        DtkError: anything wrong in it.
    """
    if earlier is not None:
        return rerun(earlier, overrides, config_dir)
    composed = compose(overrides, config_dir, traced=True)
    return resume(composed, config_dir) if composed.config.resume else Resumed(composed, None, 0)


def place_point(point: Resumed) -> "tuple[Resumed, Placement]":
    """Settle ranks and batch of a run, and check what can be checked without reading data."""
    from dtk.launch.placement import check_port, place
    from dtk.launch.remote import size

    launcher = point.composed.config.launcher
    if size.is_remote(launcher):
        placement = size.placement(point.composed.config)
        return settle_point(point, placement, launcher.nodes * placement.nproc), placement
    placement = place(launcher, point.composed.config.strategy, cuda_devices(launcher.device))
    point = settle_point(point, placement, placement.nproc)
    check_port(launcher.master_port)
    return point, placement


def settle_point(point: Resumed, placement: "Placement", world_size: int) -> Resumed:
    """Divide the batch over the ranks, and check every rule that needs no data."""
    from dtk.launch.remote.size import is_remote
    from dtk.nccl.render import check_preset
    from dtk.record.manifest import network

    place = (world_size, placement.device, placement.cuda_devices)
    check_ranks(point.composed.config, *place)
    point = dataclasses.replace(point, composed=without_reasons(settle(point.composed, world_size)))
    config = point.composed.config
    check(config, *place)
    here = None if is_remote(config.launcher) else network()["interfaces"]
    check_preset(config.nccl, placement.backend, os.environ, here)
    if isinstance(config.model, CustomModelConfig):
        check_target(config.model._target_, config.model.arguments, config.allow_targets)
    return point


def run_point(
    point: Resumed, placement: "Placement", opened: Callable[[RunPaths], None] | None = None, dry_run: bool = False
) -> int:
    """One run on this machine, or a job for others.

    Args:
        point: what to run.
        placement: where, as `place_point` settled it.
        opened: is told the run folder as soon as there is one.
        dry_run: check, and print the job or what would be started.

    Returns:
        the exit code, see `main`.

    Raises:
        DtkError: data, tracker or runs folder cannot be used, or the cluster refuses the job.
    """
    from dtk.launch.remote.size import is_remote

    nodes = point.composed.config.launcher.nodes if is_remote(point.composed.config.launcher) else 1
    with redirect_stdout(sys.stderr) if dry_run else nullcontext():
        would_hang = preflight_point(point.composed, nodes * placement.nproc, placement.nproc)
    if would_hang:
        print(would_hang, end="", flush=True)
        return FAILED
    if is_remote(point.composed.config.launcher):
        from dtk.submit import hand_over

        return hand_over(point, placement, dry_run, opened)
    return _run_here(point, placement, opened, dry_run)


def _run_here(point: Resumed, placement: "Placement", opened: Callable[[RunPaths], None] | None, dry_run: bool) -> int:
    """One run on this machine: `run_point` without what is elsewhere."""
    from dtk.launch.banner import banner, farewell
    from dtk.launch.console import Console
    from dtk.launch.local import launch
    from dtk.launch.parts import check_parts
    from dtk.record.run_folder import name_run

    config = point.composed.config
    data = check_parts(config)
    if dry_run:
        would_be = point.paths or RunPaths(Path(config.runs_folder) / name_run(config, placement.nproc))
        banner(Console(), config, would_be, placement, point.attempt, placement.nproc)
        print("dry run: nothing was started" + ("" if point.paths else ", and there is no such folder"))
        return 0
    paths = make_folder(point, data, placement, placement.nproc, "local")
    if opened is not None:
        opened(paths)
    console = Console()
    banner(console, config, paths, placement, point.attempt, placement.nproc)
    gc.enable()
    try:
        outcome = launch(config, paths, placement, point.attempt, console)
        farewell(console, paths, outcome)
    except KeyboardInterrupt:  # The last words were cut off; the run is closed already.
        return INTERRUPTED
    return outcome.exit_code


def preflight_point(composed: Composed, world_size: int, local_size: int) -> str:
    """With preflight=on: the report on a job that would hang; empty when it may be launched."""
    if composed.config.preflight == "off":
        return ""
    from dtk.preflight.run import preflight_run
    from dtk.preflight.words import answer, terminal

    found = preflight_run(composed, world_size, local_size)
    if found.verdict.ends:
        print(f"preflight: {answer(found)}", flush=True)
        return ""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return terminal(found, columns=columns, colour=False, verbose=False, page="")


def make_folder(
    point: Resumed, data: dict[str, Any], placement: "Placement", world_size: int, launcher: str
) -> RunPaths:
    """Make the run folder, or go on in the one that is resumed, and describe the run in it."""
    from dtk.nccl.render import render
    from dtk.plan.stored import keep_plan
    from dtk.record.manifest import manifest
    from dtk.record.run_folder import create, describe

    composed = point.composed
    earlier: list[Any] = []
    if point.paths is not None:
        refuse_other_data(point.paths, data)
        earlier = earlier_argv(point.paths)
    paths = point.paths or create(composed.config, world_size)
    about = manifest(
        composed.plain,
        sys.argv,
        run_id=paths.root.name,
        world_size=world_size,
        nproc=placement.nproc,
        launcher=launcher,
        backend=placement.backend,
        nccl=render(composed.config.nccl, os.environ, paths.root),
    )
    about["data"] = data
    about["earlier_argv"] = earlier
    if point.earlier is not None:
        from dtk.commands.rerun import warn_of_ground

        about["rerun_of"] = point.earlier.name
        warn_of_ground(point.earlier, composed.plain, data, world_size)
    try:
        describe(paths, about, composed.plain, composed.overrides, composed.origins)
    except (DtkError, KeyboardInterrupt):
        if point.paths is None:
            shutil.rmtree(paths.root, ignore_errors=True)
        raise
    keep_plan(paths, composed, world_size, placement.nproc, "cuda" if placement.device == "cuda" else "cpu")
    return paths


def cuda_devices(wanted: str) -> int:
    """CUDA devices here, counted without initialising CUDA in the parent."""
    if wanted == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    sys.exit(main())
