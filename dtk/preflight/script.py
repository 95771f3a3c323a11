"""One rank of a plain training script, run as torchrun would run it, up to a number of optimizer steps. Its process
groups are simulated, whatever backend it names; what it writes is discarded.
"""

import builtins
import io
import os
import random
import runpy
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtk.errors import DtkError
from dtk.preflight.sandbox import EnoughError
from dtk.preflight.simulated_rank import SimulatedRank


def play_script(script: Path, arguments: Sequence[str], local_size: int) -> Callable[[SimulatedRank], None]:
    """Return the function that a simulated rank of the script runs."""

    def play(simulated: SimulatedRank) -> None:
        rank, world_size = simulated.exchange.rank, simulated.world_size
        os.environ.update(  # Variables that torchrun sets.
            RANK=str(rank),
            LOCAL_RANK=str(rank % local_size),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(min(local_size, world_size)),
            GROUP_RANK=str(rank // local_size),
            GROUP_WORLD_SIZE=str(-(-world_size // local_size)),
            ROLE_RANK=str(rank),
            ROLE_WORLD_SIZE=str(world_size),
            MASTER_ADDR="localhost",
            MASTER_PORT="29500",
            TORCHELASTIC_RESTART_COUNT="0",
            TORCHELASTIC_MAX_RESTARTS="0",
            TORCHELASTIC_RUN_ID="preflight",
        )
        sys.argv = [str(script), *arguments]
        sys.path.insert(0, str(script.resolve().parent))
        # As in separate processes: torch's generator has the same seed on every rank, these two do not.
        random.seed(rank)
        np.random.seed(rank)
        _write_nothing()
        _stop_after(simulated)
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            if not simulated.joined and not isinstance(sys.exc_info()[1], Exception):
                what = f"{script} never calls torch.distributed.init_process_group"
                fix = "give the script that torchrun would start, with the arguments that make it distributed"
                raise DtkError(what, "a preflight follows the calls to process groups", fix)
        simulated.step = max(simulated.step, simulated.steps)

    return play


def _stop_after(simulated: SimulatedRank) -> None:
    """Count the steps of the first optimizer that steps; end after the requested number."""
    counts: Counter[int] = Counter()
    joining = _count_joined(simulated)
    simulated.step = 1

    def before(optimizer: Optimizer, *_: Any) -> None:
        counts[id(optimizer)] += 1
        count = counts[id(optimizer)]
        if next(iter(counts)) != id(optimizer):
            return
        if simulated.steps and count > simulated.steps and not joining():
            raise EnoughError
        simulated.step, simulated.rounds = count + 1, count

    register_optimizer_step_pre_hook(before)


def _count_joined(simulated: SimulatedRank) -> Callable[[], bool]:
    """Count the rounds under `Join`, where ranks run different numbers of steps; return a check for an open `Join`."""
    depth = rounds = 0
    kind: Any = Join
    enter, leave, notify, ask = kind.__enter__, kind.__exit__, kind.notify_join_context, kind._get_num_nonjoined_procs

    def begin() -> None:
        nonlocal rounds
        rounds += 1
        if simulated.steps and rounds > simulated.steps:
            raise EnoughError

    def notified(joinable: Any) -> Any:
        config = joinable._join_config
        if config.enable and config.is_first_joinable:
            begin()
        return notify(joinable)

    def announced(self: Join) -> Any:
        begin()
        return ask(self)

    def entered(self: Join) -> Any:
        nonlocal depth
        depth += 1
        return enter(self)

    def exited(self: Join, *error: Any) -> Any:
        nonlocal depth
        try:
            return leave(self, *error)
        finally:
            depth -= 1

    others = {"__enter__": entered, "__exit__": exited, "_get_num_nonjoined_procs": announced}
    for name, other in {**others, "notify_join_context": staticmethod(notified)}.items():
        setattr(Join, name, other)
    return lambda: depth > 0


def _write_nothing() -> None:
    """Replace files opened for writing by dummies; functions that create, move or remove files do nothing."""
    opened, opened_low = io.open, os.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = isinstance(file, str | bytes | os.PathLike) and any(letter in mode for letter in "wax+")
        return opened(os.devnull if writes else file, mode.replace("x", "w"), *args, **kwargs)

    def open_low(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return opened_low(os.devnull, os.O_RDWR)
        return opened_low(path, flags, *args, **kwargs)

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    for module, name, other in (
        (builtins, "open", open_file),
        (io, "open", open_file),
        (os, "open", open_low),
        *((os, name, nothing) for name in ("mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir")),
        (shutil, "rmtree", nothing),
        (torch, "save", nothing),
    ):
        setattr(module, name, other)
