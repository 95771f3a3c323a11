"""One rank: resolved configuration -> training. Never touches Hydra.

dtk's launcher starts `dtk.rank`, which calls `main`; under torchrun and Slurm `dtk.run` calls `work` in
the rank's own process.
"""

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from torch._C._distributed_c10d import Store

from diagnostics.contract.artifacts import RunPaths, Verdict, complete_checkpoints
from diagnostics.contract.formatting import counted
from dtk.config.schema import Config
from dtk.config.strict import from_plain
from dtk.parallel.context import Context, join, leave, meet
from dtk.parallel.stop import StopRequest
from dtk.rank.job import Job
from dtk.record.failure import write_failure
from dtk.record.recorder import Recorder
from dtk.record.run_folder import close
from dtk.train.assemble import assemble
from dtk.train.export import export
from dtk.train.loop import Loop
from dtk.train.parity import begun
from dtk.train.progress import say
from dtk.train.summary import summarise


def work(
    config: Config,
    job: Job,
    store: Store | None = None,
    on_failure: Callable[[], None] | None = None,
    on_hang: Callable[[Verdict], None] | None = None,
) -> int:
    """Run one rank from joining to leaving.

    Args:
        config: resolved configuration.
        job: where this rank runs and where it writes.
        store: where the ranks meet, if they have met already.
        on_failure: called after this rank failed; None = the launcher closes the run.
        on_hang: called on the rank that judges, when the live watch ends the run; None = the launcher closes it.

    Returns:
        exit code of this rank: 0 also after an orderly stop under dtk's launcher (which knows why),
        128 + signal after one under torchrun or Slurm, 1 after a failure, 2 for a user's error.
    """
    stop = StopRequest()
    stop.install(job.own_launcher)
    if isinstance(config.launcher.threads, int):  # torchrun has set OMP_NUM_THREADS=1 for everybody.
        torch.set_num_threads(config.launcher.threads)
    paths = RunPaths(job.run_folder)
    device = torch.device(f"cuda:{job.local_rank % torch.cuda.device_count()}" if job.device == "cuda" else "cpu")
    recorder = Recorder(config, paths, job.rank, job.local_rank, job.node_rank, job.world_size, job.attempt, device)
    try:
        recorder.start()
        store = store or meet(config.launcher.timeout_s)
        recorder.watch(store, on_hang or (lambda verdict: None))
        mesh = config.strategy.mesh(job.world_size)
        context = join(store, job.device, job.backend, config.launcher.timeout_s, mesh)
        finished = _train(config, job, context, recorder, stop)
    except BaseException as error:
        code = write_failure(error, paths.error(job.attempt, job.rank), job.rank, job.attempt)
        recorder.failed(error)
        recorder.close()
        if on_failure is not None:
            on_failure()
        return code
    recorder.close()
    leave()
    return 0 if finished or job.own_launcher else 128 + stop.signal_number


def _train(config: Config, job: Job, context: Context, recorder: Recorder, stop: StopRequest) -> bool:
    """Set up, restore, train, sum up; whether all steps are done."""
    paths = RunPaths(job.run_folder)
    complete = complete_checkpoints(paths) if job.attempt else []
    newest = complete[-1] if complete else None
    loop = assemble(config, context, paths, recorder, stop, newest)
    if config.fault.name != "none":
        from dtk.faults.install import install

        loop = install(loop)
    gc.freeze()  # Modules and the like live to the end: no collection needs to look at them.
    gc.enable()
    if context.rank == 0:
        if newest is not None:
            say(f"resumed from {newest.name}")
        elif job.attempt:
            say(f"no checkpoint in {paths.root.name}: it starts again from step 1")
        _describe(loop)
    if newest is None and config.record.level != "off":
        recorder.parity(begun(loop))
    finished = loop.run()
    if finished and config.checkpoint.export:
        export(config, loop.parts.model, paths, context)
    recorder.summary(summarise(loop, loop.dataset))
    if context.rank == 0:
        _close(paths, finished, loop, stop)
    return finished


def _close(paths: RunPaths, finished: bool, loop: Loop, stop: StopRequest) -> None:
    """Write the status of an orderly end and what it lacks; rank 0 does so under every launcher."""
    step, shortfall = loop.state.step, loop.checkpoints.shortfall()
    if shortfall:
        say(f"warning: {shortfall}")
    if finished:
        close(paths, "finished", 0, step=step, reason=shortfall)
    else:
        reason = f"stopped by a signal; {shortfall}" if shortfall else "stopped by a signal"
        close(paths, "preempted", 128 + stop.signal_number, step=step, reason=reason)


def _describe(loop: Loop) -> None:
    """Print what the parent cannot know before a rank has built it."""
    dataset = loop.dataset
    about = dataset.describe()
    synthetic = "  SYNTHETIC DATA: the loss means nothing" if about.get("synthetic") else ""
    say(
        f"model {loop.parts.parameter_count:,} parameters; data {about['source']}: {dataset.train_size:,} training "
        f"and {counted(dataset.validation_size, 'held-out sample')}{synthetic}"
    )
    speed = loop.measures
    sends = f"{speed.communicated_bytes_per_step / 2**20:,.1f} MiB in collectives a step"
    peak = f"against {speed.peak_reason}" if speed.peak_flops else f"not available: {speed.peak_reason}"
    say(f"{sends}; mfu {peak}")


def _end_with(parent: int) -> None:
    """End this rank when the launcher is gone: SIGKILL gives it no chance to end its ranks."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(run_folder: Path) -> int:
    """Entry of a rank that dtk's launcher started: the folder says the rest."""
    threading.Thread(target=_end_with, args=(os.getppid(),), name="orphan-watch", daemon=True).start()
    paths = RunPaths(run_folder)
    config = from_plain(yaml.safe_load(paths.config.read_text(encoding="utf-8")))
    return work(config, Job.from_environment(run_folder))
