"""`python -m dtk.launch.remote.rank RUN_FOLDER`: one rank of a submitted job, started by srun or torchrun."""

import argparse
import gc
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtk.errors import USER_ERROR, DtkError, ended
from dtk.rank.child import leave_process

if TYPE_CHECKING:
    from diagnostics.contract.artifacts import RunPaths
    from dtk.config.placement import Placement
    from dtk.config.schema import Config
    from dtk.launch.cluster import Shared


def main(argv: list[str] | None = None) -> int:
    """Train and return the exit code of the rank."""
    # Objects of torch's import live to the end; scanning them repeatedly is a third of the start-up time.
    gc.disable()
    parser = argparse.ArgumentParser(prog="python -m dtk.launch.remote.rank", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER")
    frozen = "the frozen run, from which the run folder is created if it does not exist yet"
    parser.add_argument("--frozen", type=Path, metavar="FOLDER", help=frozen)
    arguments = parser.parse_args(argv)

    def train() -> int:
        from dtk.launch.cluster import join
        from dtk.rank.job import started_by

        # Slurm also starts jobs with a single rank, which `started_by` reports as not launched.
        launcher = started_by(os.environ) or ("slurm" if "SLURM_PROCID" in os.environ else None)
        if launcher is None:
            raise DtkError("a rank of a submitted job starts under srun or torchrun", "neither started this process")
        return join(launcher, lambda: decide(arguments.run, arguments.frozen, launcher))

    return ended(train)


def decide(run: Path, frozen: Path | None, launcher: str) -> "Shared":
    """Return rank 0's decision for all ranks: the frozen configuration, the attempt, the device and the backend;
    DtkError if the folder cannot be read, the number of ranks differs from the submission, or the data has changed.
    """
    from diagnostics.contract.artifacts import RunPaths, read_status
    from dtk.config.resume import check_continuable, next_attempt, read_stored
    from dtk.config.strict import to_plain
    from dtk.launch.cluster import Shared
    from dtk.launch.console import Console, banner
    from dtk.record.run_folder import begin, close

    paths = RunPaths(run)
    if frozen is not None and not paths.config.exists():
        _thaw(paths, frozen)
    try:
        config = read_stored(paths, str(paths.root)).config
        check_continuable(paths, config.train.steps)
        attempt = next_attempt(paths)  # After a requeue; the first attempt was counted at submission.
        with suppress(OSError, ValueError):
            if (status := read_status(paths.status)).state == "queued":
                attempt = status.attempt
        placement = _prepare(config, paths, launcher)
    except DtkError as error:
        with suppress(OSError, ValueError):
            if read_status(paths.status).state == "queued":  # In any other state this job must not close the run.
                close(paths, "failed", USER_ERROR, reason=str(error))
        raise
    begin(paths, attempt)
    banner(Console(), config, paths, placement, attempt)
    return Shared(str(paths.root), to_plain(config), placement.device, placement.backend, attempt)


def _thaw(paths: "RunPaths", frozen: Path) -> None:
    from dtk.record.run_folder import unwritable

    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in frozen.iterdir() if path.is_file() and not path.name.startswith("."))
        # The configuration is last: its presence means that the folder is complete.
        for name in sorted(names, key=lambda name: name == paths.config.name):
            shutil.copyfile(frozen / name, paths.root / name)
    except OSError as error:
        if str(error.filename or "").startswith(str(frozen)):
            raise DtkError(f"cannot read {error.filename}", error.strerror or str(error)) from error
        raise unwritable(paths.root, error) from error


def _prepare(config: "Config", paths: "RunPaths", launcher: str) -> "Placement":
    """Check the job on the machine of rank 0, and write its manifest."""
    from dtk.config.checks import check
    from dtk.config.placement import ranks_per_node
    from dtk.config.resume import refuse_other_data
    from dtk.launch import cluster
    from dtk.launch.prepare import check_parts
    from dtk.nccl.render import render
    from dtk.record.manifest import manifest

    world_size = int(os.environ["WORLD_SIZE"])
    planned = config.launcher.nodes * ranks_per_node(config.launcher, config.strategy)
    if planned != world_size:
        raise DtkError(f"the job has {world_size} ranks, and was submitted for {planned}", "its batch is fixed")
    placement = cluster.place_here(config, launcher)
    check(config, world_size, placement.device, placement.cuda_devices)
    data = check_parts(config, world_size)
    refuse_other_data(paths, data)
    nccl = render(config.nccl, os.environ, paths.root)
    about = manifest(config, paths.root.name, placement, config.launcher.name, asdict(nccl))
    _write_manifest(paths, {**about, "data": data})
    return placement


def _write_manifest(paths: "RunPaths", about: dict[str, Any]) -> None:
    """Write the manifest: hardware and versions of the training machine, command line and commit of the submission."""
    from diagnostics.contract.artifacts import write_json
    from diagnostics.runs.records import mapping
    from dtk.record.run_folder import writing

    before = mapping(str(paths.manifest), [])
    submitted = ("argv", "cwd", "git", "earlier_argv", "rerun_of", "submitted")
    with writing(paths.root):
        write_json(paths.manifest, {**about, **{key: before[key] for key in submitted if key in before}})


if __name__ == "__main__":
    leave_process(main())
