"""`python -m dtk.run`: compose -> check -> run folder -> launch. The only place that calls Hydra.

The parent composes once; ranks get a folder with the resolved configuration. Under torchrun and
srun the ranks exist already: rank 0 composes and shares.
"""

import argparse
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diagnostics.artifacts import RunPaths
from diagnostics.invocation import command
from dtk.config import help as config_help
from dtk.config.batch import settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import Composed, compose, expand
from dtk.config.instantiate import check_target
from dtk.config.resume import Resumed, earlier_argv, refuse_other_data, rerun, resume
from dtk.config.schema import CustomModelConfig, GPTConfig
from dtk.errors import USER_ERROR, DtkError
from dtk.extras import require_training

if TYPE_CHECKING:
    from dtk.launch.cluster import Shared
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """An unknown option is one line like every other wrong input, without the usage above it."""
        raise DtkError(message, fix=command("run", "--help"))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="dtk run",
        description="Train a model under a parallel strategy and leave a run folder.",
        epilog=config_help.help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="what differs from conf/config.yaml")
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of a,b lists, one after another"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder of your own YAML files, searched before dtk's")
    parser.add_argument(
        "--rerun", type=Path, metavar="RUN", help="take the configuration of that run folder instead of conf/"
    )
    parser.add_argument("--cfg", action="store_true", help="print the composed configuration and stop")
    return parser.parse_intermixed_args(argv)


def _main(arguments: argparse.Namespace) -> int:
    require_training("dtk run needs")
    from dtk.launch.cluster import started_by

    if started_by(os.environ) is not None and not arguments.cfg:
        if arguments.multirun:
            raise DtkError("-m runs jobs one after another by itself", "under torchrun or srun there is one", "drop -m")
        return _join(arguments)
    sweep = expand(arguments.overrides, arguments.config_dir) if arguments.multirun else [arguments.overrides]
    points = [_compose(overrides, arguments) for overrides in sweep]
    if arguments.cfg:
        import yaml

        for point in points:
            print(yaml.safe_dump(point.composed.plain, sort_keys=False), end="")
        return 0
    placed = [_place(point) for point in points]
    if len(placed) == 1:
        return _run(*placed[0])
    return _sweep(placed)


def _sweep(placed: "list[tuple[Resumed, Placement]]") -> int:
    """All points one after another; one that fails does not cost the others. Returns the worst exit code."""
    from dtk.launch.stopping import STOPPED

    codes = []
    for i, (point, placement) in enumerate(placed):
        print(f"\n[{i + 1}/{len(placed)}] {' '.join(point.composed.overrides)}", flush=True)
        try:
            codes.append(_run(point, placement))
        except DtkError as error:
            print(f"dtk: {error}", file=sys.stderr)
            codes.append(USER_ERROR)
        if codes[-1] in STOPPED:
            break
    return max(codes)


def _compose(overrides: list[str], arguments: argparse.Namespace) -> Resumed:
    config_dir: Path | None = arguments.config_dir
    if arguments.rerun is not None:
        return rerun(arguments.rerun, overrides, config_dir)
    composed = compose(overrides, config_dir)
    return resume(composed, config_dir) if composed.config.resume else Resumed(composed, None, 0)


def _place(point: Resumed) -> "tuple[Resumed, Placement]":
    """Settle ranks and batch of a run on this machine, and check what can be checked without reading data."""
    from dtk.launch.placement import check_port, place

    launcher = point.composed.config.launcher
    placement = place(launcher, point.composed.config.strategy, _cuda_devices(launcher.device))
    point = _settle(point, placement, placement.nproc)
    check_port(launcher.master_port)
    return point, placement


def _settle(point: Resumed, placement: "Placement", world_size: int) -> Resumed:
    """Divide the batch over the ranks, and check every rule that needs no data."""
    place = (world_size, placement.device, placement.cuda_devices)
    check_ranks(point.composed.config, *place)
    point = dataclasses.replace(point, composed=settle(point.composed, world_size))
    config = point.composed.config
    check(config, *place)
    if isinstance(config.model, CustomModelConfig):
        check_target(config.model._target_, config.model.arguments, config.allow_targets)
    return point


def _run(point: Resumed, placement: "Placement") -> int:
    """One run on this machine."""
    from dtk.launch.banner import banner, farewell
    from dtk.launch.console import Console
    from dtk.launch.local import launch

    config = point.composed.config
    data = _check_parts(point.composed)
    if would_hang := _preflight(point.composed, placement.nproc, placement.nproc):
        print(would_hang, end="", flush=True)
        return FAILED
    paths = _folder(point, data, placement, placement.nproc, "local")
    console = Console()
    banner(console, config, paths, placement, point.attempt, placement.nproc)
    try:
        outcome = launch(config, paths, placement, point.attempt, console)
        farewell(console, paths, outcome)
    except KeyboardInterrupt:  # The last words were cut off; the run is closed already.
        return INTERRUPTED
    return outcome.exit_code


def _preflight(composed: Composed, world_size: int, local_size: int) -> str:
    """With preflight=on: the report on a job that would hang; empty when it may be launched."""
    if composed.config.preflight == "off":
        return ""
    from dtk.preflight.make import rehearse_run
    from dtk.preflight.words import answer, terminal

    found = rehearse_run(composed, world_size, local_size)
    if found.verdict.ends:
        print(f"preflight: {answer(found)}", flush=True)
        return ""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return terminal(found, columns=columns, colour=False, verbose=False, page="")


def _join(arguments: argparse.Namespace) -> int:
    """One rank of torchrun or Slurm: rank 0 composes and makes the folder, all train."""
    from dtk.config.strict import from_plain
    from dtk.launch import cluster
    from dtk.parallel.context import meet
    from dtk.worker import work

    launcher = str(cluster.started_by(os.environ))
    if launcher == "slurm":
        os.environ.update(cluster.adopt_slurm(os.environ))
    store = meet(cluster.SHARE_TIMEOUT_S)

    def decide() -> cluster.Shared:
        shared = cluster.remembered(store) or _decide(arguments, launcher)
        cluster.remember(store, shared)
        return shared

    shared = cluster.share(store, int(os.environ["RANK"]), decide)
    config = from_plain(json.loads(shared.config))
    job = cluster.job_of(shared)
    paths = RunPaths(job.run_folder)
    cluster.rank_environment(config, paths)
    cluster.keep_logs(paths, job)
    code = work(config, job, store)
    if job.rank == 0:
        cluster.say_farewell(paths, code)
    return code


def _decide(arguments: argparse.Namespace, launcher: str) -> "Shared":
    """What rank 0 settles for all ranks of torchrun or Slurm, run folder included."""
    from dtk.launch import cluster
    from dtk.launch.banner import banner
    from dtk.launch.console import Console
    from dtk.launch.placement import place

    world_size = int(os.environ["WORLD_SIZE"])
    local_size = cluster.local_size(os.environ)
    point = _compose(arguments.overrides, arguments)
    section, strategy = point.composed.config.launcher, point.composed.config.strategy
    placement = place(section, strategy, _cuda_devices(section.device), local_size)
    point = _settle(point, placement, world_size)
    config = point.composed.config
    data = _check_parts(point.composed)
    if would_hang := _preflight(point.composed, world_size, local_size):
        print(would_hang, end="", flush=True)
        raise DtkError("this job would hang", "preflight=on does not launch it", "mend what the report above names")
    paths = _folder(point, data, placement, world_size, launcher)
    cluster.open_status(paths, point.attempt)
    placement = cluster.as_found(placement, section, launcher, world_size)
    banner(Console(), config, paths, placement, point.attempt, world_size)
    plain = json.dumps(point.composed.plain)
    return cluster.Shared(str(paths.root), plain, placement.device, placement.backend, point.attempt)


def _check_parts(composed: Composed) -> dict[str, Any]:
    """Find out here, in one line, what the ranks would trip over; returns what the data is."""
    from dtk.data.build import build_dataset
    from dtk.data.checks import check_dataset
    from dtk.record.trackers import check_tracker

    config = composed.config
    check_tracker(config.tracker)
    if isinstance(config.model, GPTConfig) and config.model.pretrained:
        from dtk.models.hf import check_gpt2

        check_gpt2(config.model, config.model.pretrained)
    dataset = build_dataset(config.data)
    check_dataset(config, dataset)
    return dataset.describe()


def _folder(point: Resumed, data: dict[str, Any], placement: "Placement", world_size: int, launcher: str) -> RunPaths:
    """Make the run folder, or go on in the one that is resumed, and describe the run in it."""
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
    )
    about["data"] = data
    about["earlier_argv"] = earlier
    try:
        describe(paths, about, composed.plain, composed.overrides)
    except (DtkError, KeyboardInterrupt):
        if point.paths is None:
            shutil.rmtree(paths.root, ignore_errors=True)
        raise
    keep_plan(paths, composed, world_size, placement.nproc, "cuda" if placement.device == "cuda" else "cpu")
    return paths


def _cuda_devices(wanted: str) -> int:
    """CUDA devices here, counted without initialising CUDA in the parent."""
    if wanted == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    sys.exit(main())
