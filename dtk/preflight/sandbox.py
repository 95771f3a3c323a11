"""The environment of a simulated rank in its process: recording group, time limit, no network or files; and in it one
rank of a plain training script, run as torchrun would run it, up to a number of optimizer steps.
What it writes is discarded. Modules are changed permanently, as the process ends with the rank.
"""

import builtins
import dataclasses
import functools
import io
import os
import random
import runpy
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.model import Frame, RankError
from dtk.errors import DtkError
from dtk.parallel.regions import failed_in
from dtk.preflight import exchange as exchanging, group as recording
from dtk.preflight.calls import End, Record
from dtk.preflight.exchange import Exchange, SimulatedRank
from dtk.preflight.group import RecordingGroup, made_group
from dtk.record import collectives as record_collectives
from dtk.simulate.mirror import stand_in

_PLUMBING = tuple(str(Path(__file__).parents[1] / part) for part in ("preflight", "simulate"))
"""Source paths whose frames are not the user's call site."""
MAX_ERRORS = 64 << 10  # Maximum number of characters of standard error kept per rank.
_open = ExitStack()  # Contexts that stay open until the process ends.


class EnoughError(BaseException):
    """Raised when all requested steps are done."""


class StalledError(BaseException):
    """Raised when the rank exceeds its time limit."""


class EndedError(BaseException):
    """Raised when the rank ends itself; its argument is the `End`."""


def simulate_rank(
    exchange: Exchange, world_size: int, steps: int, limit_s: float, play: Callable[[SimulatedRank], None]
) -> Record:
    """Simulate one rank in this process, which cannot be used for anything else afterwards.

    0 `steps` run until the rank ends; one that exceeds `limit_s` is stalled. `play` runs the rank and creates its
    process group. DtkError if the job cannot be simulated at all.
    """
    recording.outermost = _play.__code__
    simulated = exchanging.current = SimulatedRank(exchange, world_size, steps)
    torch.set_num_threads(1)
    _install(simulated)
    # A rank's output would appear once per rank; its errors are kept as in its log.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    errors = sys.stderr = _Errors(exchange)
    _no_way_out()
    signal.signal(signal.SIGALRM, _stalled)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    end = _play(simulated, play)
    signal.setitimer(signal.ITIMER_REAL, 0)
    tape, new_groups = simulated.tape, tuple(simulated.new_groups)
    groups = tuple(tape.groups)
    return Record(exchange.rank, tape.program(), groups, end, errors.getvalue(), new_groups, simulated.rounds)


def _play(simulated: SimulatedRank, play: Callable[[SimulatedRank], None]) -> End:
    code = 0
    try:
        play(simulated)
    except EnoughError:
        pass
    except DtkError:
        raise
    except StalledError as error:
        if simulated.exchange.adrift:  # It continued with placeholder values; its position is known already.
            return End(step=simulated.step)
        return End("stalled", stack=_stack(error)[1:], step=simulated.step)  # Without the clock's frame.
    except EndedError as error:
        end: End = error.args[0]
        return dataclasses.replace(end, step=simulated.step)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        traceback.print_exception(error)  # To the rank's own standard error, as in a real process.
        # As in an error file; of a chain, the exception that started it.
        raised = tracebacks.parse("".join(traceback.format_exception(error)))
        if raised is None:
            raised = tracebacks.Raised(type(error).__name__, str(error), _stack(error))
        message, rank = raised.message[: tracebacks.MAX_MESSAGE], simulated.exchange.rank
        ending = RankError(rank, "", 0, raised.type, message, raised.frames, region=failed_in())
        return End("raised", error=ending, step=simulated.step)
    early = simulated.step < simulated.steps
    return End("exited" if code or early else "finished", code=code, step=simulated.step)


def _install(simulated: SimulatedRank) -> None:
    """Make every process group created from now on a recording one."""
    record_collectives.PLUMBING = (*record_collectives.PLUMBING, *_PLUMBING)
    module: Any = c10d
    init, new_group = module.init_process_group, module._new_group_with_tag

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        simulated.joined = True
        _open.enter_context(stand_in(RecordingGroup))
        store = torch._C._distributed_c10d.HashStore()
        init("gloo", store=store, rank=simulated.exchange.rank, world_size=simulated.world_size)

    @functools.wraps(new_group)
    def new_group_with_tag(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kw: Any) -> Any:
        members = range(simulated.world_size) if ranks is None else ranks
        if not kw.get("use_local_synchronization"):
            made_group(list(members), str(kw.get("group_desc") or ""))
        return new_group(ranks, None, "gloo", *args, **kw)

    module._new_group_with_tag = new_group_with_tag
    module.init_process_group = dist.init_process_group = init_process_group


class _Errors(io.StringIO):
    """Standard error of a rank, up to a limit, and until the rank continues with placeholder values."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def write(self, text: str) -> int:
        """Store the text, or drop it."""
        kept = self.tell() < MAX_ERRORS and not self._exchange.adrift
        return super().write(text) if kept else len(text)


def _no_way_out() -> None:
    """Make calls that would end the process end the rank instead, so that its calls are kept."""
    kill, me = os.kill, os.getpid()

    def kill_other(pid: int, number: int) -> None:
        if pid == me == os.getpid() and number:
            raise EndedError(End("killed", signal=signal.Signals(number).name))
        kill(pid, number)

    def ends_rank(leave: Callable[..., NoReturn], ending: Callable[..., End]) -> Callable[..., NoReturn]:
        def ended(*code: int) -> NoReturn:
            if os.getpid() != me:  # A process that the rank started.
                leave(*code)
            raise EndedError(ending(*code))

        return ended

    os.kill = kill_other  # type: ignore[assignment]
    os._exit = ends_rank(os._exit, lambda code: End("exited", code=code))
    os.abort = ends_rank(os.abort, lambda: End("killed", signal="SIGABRT"))


def _stalled(number: int, frame: FrameType | None) -> None:
    raise StalledError


def _stack(error: BaseException) -> tuple[Frame, ...]:
    frames = traceback.extract_tb(error.__traceback__)
    return tuple(Frame(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames))


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
