"""One rank: resolved configuration -> training. Never touches Hydra.

`python -m dtk.worker RUN_FOLDER` is what the launcher starts; under torchrun and Slurm `dtk.run`
calls `work` in the rank's own process.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._C._distributed_c10d import Store

from diagnostics.artifacts import RunPaths, complete_checkpoints
from dtk.config.schema import Config
from dtk.config.strict import from_plain
from dtk.data.build import build_dataset
from dtk.data.dataset import Dataset
from dtk.launch.cluster import close_failed
from dtk.launch.job import Job
from dtk.parallel.context import Context, join, leave, meet
from dtk.parallel.precision import LossScaler
from dtk.parallel.stop import StopRequest
from dtk.record.failure import write_failure
from dtk.record.metrics import peak_flops
from dtk.record.recorder import Recorder
from dtk.record.run_folder import close
from dtk.train.checkpoint import Checkpoints, LoopState
from dtk.train.export import export
from dtk.train.loop import Loop
from dtk.train.measures import Measures
from dtk.train.progress import Progress, say
from dtk.train.setup import Parts, set_up
from dtk.train.summary import summarise


def work(config: Config, job: Job, store: Store | None = None) -> int:
    """Run one rank from joining to leaving.

    Args:
        config: resolved configuration.
        job: where this rank runs and where it writes.
        store: where the ranks meet, if they have met already.

    Returns:
        exit code of this rank: 0 also after an orderly stop under dtk's launcher (which knows why),
        128 + signal after one under torchrun or Slurm, 1 after a failure, 2 for a user's error.
    """
    stop = StopRequest()
    stop.install(job.own_launcher)
    paths = RunPaths(job.run_folder)
    device = torch.device(f"cuda:{job.local_rank % torch.cuda.device_count()}" if job.device == "cuda" else "cpu")
    recorder = Recorder(config, paths, job.rank, job.local_rank, job.node_rank, job.world_size, job.attempt, device)
    try:
        recorder.start()
        store = store or meet(config.launcher.timeout_s)
        context = join(store, job.device, job.backend, config.launcher.timeout_s)
        finished = _train(config, job, context, recorder, stop)
    except BaseException as error:
        code = write_failure(error, paths.error(job.attempt, job.rank), job.rank, job.attempt)
        recorder.failed(error)
        recorder.close()
        if not job.own_launcher:
            close_failed(job)
        return code
    recorder.close()
    leave()
    return 0 if finished or job.own_launcher else 128 + stop.signal_number


def _train(config: Config, job: Job, context: Context, recorder: Recorder, stop: StopRequest) -> bool:
    """Set up, restore, train, sum up; whether all steps are done."""
    dataset = build_dataset(config.data)
    parts = set_up(config, context)
    checkpoints = Checkpoints(config.checkpoint, RunPaths(job.run_folder), context, recorder, _info(config))
    checkpoints.clean()
    state = _restore(config, job, parts, checkpoints)
    scaler = LossScaler(config.precision.initial_loss_scale)
    if state.step and scaler.enabled:
        scaler.scale, scaler.good_steps = state.loss_scale, state.good_steps
    speed = measures(config, context, parts)
    if context.rank == 0:
        _describe(parts, dataset, speed)
    loop = Loop(
        config,
        context,
        dataset,
        parts,
        recorder,
        checkpoints,
        stop,
        scaler,
        state,
        speed,
        Progress(config.train.steps, context.world_size, state.step),
    )
    finished = loop.run()
    if finished and config.checkpoint.export:
        export(config, parts.model, RunPaths(job.run_folder), context)
    recorder.summary(summarise(loop, dataset))
    if context.rank == 0:
        _close(RunPaths(job.run_folder), finished, loop.state.step, stop)
    return finished


def _close(paths: RunPaths, finished: bool, step: int, stop: StopRequest) -> None:
    """The status of an orderly end, written by rank 0 under every launcher."""
    if finished:
        close(paths, "finished", 0, step=step)
    else:
        close(paths, "preempted", 128 + stop.signal_number, step=step, reason="stopped by a signal")


def _restore(config: Config, job: Job, parts: Parts, checkpoints: Checkpoints) -> LoopState:
    """The newest complete checkpoint of this run folder, if there is one."""
    complete = complete_checkpoints(RunPaths(job.run_folder)) if job.attempt else []
    if not complete:
        return LoopState()
    state = checkpoints.load(complete[-1], parts.model, parts.optimizer)
    if job.rank == 0:
        say(f"resumed from {complete[-1].name}")
    return state


def _info(config: Config) -> dict[str, Any]:
    return {
        "model": config.model.name,
        "strategy": config.strategy.name,
        "global_batch_size": config.train.global_batch_size,
        "seed": config.seed,
    }


def _describe(parts: Parts, dataset: Dataset, speed: Measures) -> None:
    """What the parent cannot know before a rank has built it."""
    about = dataset.describe()
    synthetic = "  SYNTHETIC DATA: the loss means nothing" if about.get("synthetic") else ""
    say(
        f"model {parts.parameter_count:,} parameters; data {about['source']}: {dataset.train_size:,} training "
        f"and {dataset.validation_size:,} held-out samples{synthetic}"
    )
    sends = f"{speed.communicated_bytes_per_step / 2**20:,.1f} MiB in collectives a step"
    peak = f"against {speed.peak_reason}" if speed.peak_flops else f"not available: {speed.peak_reason}"
    say(f"{sends}; mfu {peak}")


def measures(config: Config, context: Context, parts: Parts) -> Measures:
    """What is needed to turn step times into tokens/s and MFU."""
    peak, reason = (None, "the CPU has no published peak")
    if context.device.type == "cuda":
        dtype = "tf32" if config.precision.tf32 else config.precision.compute_dtype
        peak, reason = peak_flops(torch.cuda.get_device_name(context.device), dtype)
    flops = getattr(parts.model, "flops_per_token", None)
    train = config.train
    accumulation = train.global_batch_size // (train.micro_batch_size * context.world_size)
    declared = parts.strategy.collectives(parts.model, accumulation)
    if train.clip_norm is not None:
        declared += parts.strategy.clip_collectives
    return Measures(
        tokens_per_step=train.global_batch_size * config.data.sequence_length,
        flops_per_token=flops(config.data.sequence_length) if flops else None,
        world_size=context.world_size,
        peak_flops=peak,
        peak_reason=reason,
        communicated_bytes_per_step=sum(c.size_bytes for c in declared),
    )


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


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads may abort the process while the interpreter is torn down; everything is written.
    os._exit(code)
