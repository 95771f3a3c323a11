"""Training on one rank from a resolved configuration, under dtk's launcher (`main`), torchrun or Slurm. No Hydra."""

import gc
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._distributed_c10d import Store

from diagnostics.contract.artifacts import RunPaths, State, Verdict, complete_checkpoints
from diagnostics.contract.files import read_record
from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.config.schema import Config, CustomModelConfig
from dtk.config.strict import from_plain
from dtk.parallel.blocks import describe_blocks
from dtk.parallel.context import Context, join, leave, meet
from dtk.parallel.stop import StopRequest
from dtk.rank.job import ATTEMPT, BACKEND, CONFIG, DEVICE, Job
from dtk.record.recorder import Recorder
from dtk.record.run_folder import close, write_failure
from dtk.train.assemble import assemble, begun, summarise
from dtk.train.export import export
from dtk.train.loop import Loop
from dtk.train.progress import print_line


def work(
    config: Config,
    job: Job,
    store: Store | None = None,
    on_failure: Callable[[], None] | None = None,
    on_hang: Callable[[Verdict], None] | None = None,
) -> int:
    """Run one rank from joining to leaving the process group.

    `on_failure` is called after this rank failed, `on_hang` on the judging rank when the live watch ends the run; None
    if the launcher closes the run.

    Return the exit code of this rank: 0 on success or after a graceful stop under dtk's launcher (which knows why),
    128 + signal after one under torchrun or Slurm, 1 after a failure, 2 for a user's error.
    """
    stop = StopRequest()
    stop.install(job.own_launcher)
    if isinstance(config.launcher.threads, int):  # torchrun has set OMP_NUM_THREADS=1 for all ranks.
        torch.set_num_threads(config.launcher.threads)
    paths = RunPaths(job.run_folder)
    device = torch.device(f"cuda:{job.local_rank % torch.cuda.device_count()}" if job.device == "cuda" else "cpu")
    recorder = Recorder(config, paths, job.rank, job.local_rank, job.node_rank, job.world_size, job.attempt, device)
    try:
        recorder.start()
        store = store or meet(config.launcher.timeout_s)
        recorder.watch(store, on_hang or (lambda verdict: None))
        mesh = config.mesh(job.world_size)
        context = join(store, job.device, job.backend, config.launcher.timeout_s, mesh)
        code = _train(config, job, context, recorder, stop)
    except BaseException as error:
        # The handler of torch's data loader raises here, too, when another of its processes dies meanwhile.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = write_failure(error, paths.error(job.attempt, job.rank), job.rank, job.attempt)
        recorder.failed(error)
        recorder.close()
        if on_failure is not None:
            on_failure()
        return code
    recorder.close()
    leave()
    return 0 if job.own_launcher else code


def _train(config: Config, job: Job, context: Context, recorder: Recorder, stop: StopRequest) -> int:
    """Set up, restore, train and summarise; return the exit code as far as this rank knows it."""
    paths = RunPaths(job.run_folder)
    complete = complete_checkpoints(paths) if job.attempt else []
    newest = complete[-1] if complete else None
    loop = assemble(config, context, paths, recorder, stop, newest)
    if config.fault.name != "none":
        from dtk.faults.install import install

        loop = install(loop)
    gc.freeze()  # Modules and the like live to the end: garbage collection need not scan them.
    gc.enable()
    if context.rank == 0:
        if newest is not None:
            print_line(f"resumed from {newest.name}")
        elif job.attempt:
            print_line(f"no checkpoint in {paths.root.name}: it starts again from step 1")
        _describe(loop)
    if newest is None and config.record.level != "off":
        recorder.parity(begun(loop))
    finished = loop.run()
    if finished and config.checkpoint.export:
        export(config, loop.parts.model, paths, context, loop.parts.strategy)
    recorder.summary(summarise(loop, loop.dataset))
    if context.rank == 0:
        return _close(paths, finished, loop, stop)
    return 0 if finished else 128 + stop.signal_number


def _close(paths: RunPaths, finished: bool, loop: Loop, stop: StopRequest) -> int:
    """Write the status of a normal end, on rank 0 under every launcher; without a last checkpoint the run failed."""
    step, shortfall = loop.state.step, loop.checkpoints.shortfall()
    state: State = "preempted" if not finished else "failed" if shortfall else "finished"
    code = int(bool(shortfall)) if finished else 128 + stop.signal_number
    stopped = "" if finished else "stopped by a signal"
    if loop.enough:
        stopped = f"ended by a callback: {loop.callbacks.training.reason or 'of another rank'}"
        print_line(f"after step {step} {stopped}")
    close(paths, state, code, step=step, reason="; ".join(filter(None, (stopped, shortfall))))
    return code


def _describe(loop: Loop) -> None:
    """Print what the parent cannot know before a rank has built the model."""
    dataset = loop.dataset
    about = dataset.describe()
    synthetic = "  SYNTHETIC DATA: the loss is meaningless" if about.get("synthetic") else ""
    print_line(
        f"model: {loop.parts.parameter_count:,} parameters; data: {about['source']}, {dataset.train_size:,} training "
        f"and {counted(dataset.validation_size, 'held-out sample')}{synthetic}"
    )
    if isinstance(loop.config.model, CustomModelConfig):
        print_line(describe_blocks(loop.parts.model))
    for note in loop.parts.strategy.notes:
        print_line(f"strategy.config: {note}")
    speed = loop.measures
    peak = f"relative to {speed.peak_reason}" if speed.peak_flops else f"not available: {speed.peak_reason}"
    print_line(f"communication: {bytes_text(speed.communicated_bytes_per_step)} per step; MFU {peak}")


def main(run_folder: Path) -> int:
    """Run a rank that dtk's launcher started; the run folder contains the configuration."""
    paths = RunPaths(run_folder)
    # Removed from the environment, so that child processes do not inherit it.
    secret = os.environ.pop(CONFIG, None)
    config = from_plain(json.loads(secret) if secret else load_yaml(read_record(paths.config), Limits()))
    placement = os.environ[DEVICE], os.environ[BACKEND], int(os.environ[ATTEMPT])
    return work(config, Job.from_environment(run_folder, *placement, own_launcher=True))
