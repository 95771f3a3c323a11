"""On every rank: some steps of a real training with states in memory or in files, and what they took."""

import ctypes
import gc
import os
import resource
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import Config
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.parallel.context import Context
from dtk.parallel.control import agree
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from tests.dist.ranks import placed

M_MMAP_THRESHOLD = -3


def resident_bytes(field: str) -> int:
    """A figure of /proc/self/status: VmHWM, VmRSS, VmData."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def measure(context: Context, plain: dict[str, Any], folder: str, steps: int, limit_bytes: int = 0) -> dict[str, Any]:
    """Peak resident memory above that of the process before set-up, median step, processor time of it, bytes moved.

    Args:
        context: this rank.
        plain: resolved configuration.
        folder: for the run.
        steps: that are timed, after a first one.
        limit_bytes: RLIMIT_DATA of this rank from set-up on; 0 = none.
    """
    # Every large tensor is a mapping of its own and goes back when it is freed.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    config = from_plain(plain)
    context = placed(context, config)
    gc.collect()
    before = resident_bytes("VmRSS")
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    paths = RunPaths(Path(folder))
    recorder = Recorder(config, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
    loop = assemble(config, context, paths, recorder, StopRequest())
    times, cpu, moved = [], [], []
    for step in range(steps + 1):
        if step == 1:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew.
        inputs = loop._batches(step), agree(loop.context, False, 0)
        began, used, figures = time.perf_counter(), time.process_time(), loop.parts.strategy.figures()
        loop._step(step, *inputs)
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        moved.append(sum(loop.parts.strategy.figures().values()) - sum(figures.values()))
    peak = resident_bytes("VmHWM") - before
    return {
        "peak_bytes": peak,
        "step_s": median(times[1:]),
        "cpu_s": median(cpu[1:]),
        "moved_bytes": moved[-1],
        "data_bytes": resident_bytes("VmData"),
    }


def alternate(context: Context, jobs: dict[str, Any], folder: str, rounds: int) -> list[dict[str, tuple[float, float]]]:
    """Time steps of several jobs of one process group in turn, every other round in the reverse order.

    Args:
        context: this rank.
        jobs: name -> resolved configuration.
        folder: for the runs.
        rounds: of one step of each job, after a first that is not timed.

    Returns:
        of each round name -> seconds of a step, and of processor time in it.
    """
    loops = {}
    for number, (name, plain) in enumerate(jobs.items()):
        job = from_plain(plain)
        rank, paths = placed(context, job), RunPaths(Path(folder) / str(number))
        recorder = Recorder(job, paths, rank.rank, rank.local_rank, 0, rank.world_size, 0, rank.device)
        loops[name] = assemble(job, rank, paths, recorder, StopRequest())
    timed: list[dict[str, tuple[float, float]]] = []
    for step in range(rounds + 1):
        took = {}
        for name, loop in list(loops.items())[:: 1 if step % 2 else -1]:
            inputs = loop._batches(step), agree(loop.context, False, 0)
            began, used = time.perf_counter(), time.process_time()
            loop._step(step, *inputs)
            took[name] = time.perf_counter() - began, time.process_time() - used
        timed.append(took)
    return timed[1:]


def lose_the_disk(context: Context, job: Config, folder: str, before: str) -> str:
    """Cut the file of the parameters to nothing between steps, before an update or before a checkpoint.

    Returns:
        what the next step says, or why the checkpoint was not written.
    """
    context, paths = placed(context, job), RunPaths(Path(folder))
    recorder = Recorder(job, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
    loop = assemble(job, context, paths, recorder, StopRequest())
    loop.measures.start()
    loop.advance()
    strategy = loop.parts.strategy
    cut = partial(os.ftruncate, strategy.tier.shards.file.fileno(), 0)
    if before == "checkpoint":
        cut()
        loop.checkpoints.save(loop.parts.model, loop.parts.optimizer, loop.state)
        loop.checkpoints.wait()
        return loop.checkpoints.failure
    if before == "step":
        cut()
    else:
        strategy.norm_of_update = strategy.gradient_norm = lambda *_: cut() or torch.ones(())
    try:
        loop.advance()
    except DtkError as error:
        return str(error)
    return "no error"
