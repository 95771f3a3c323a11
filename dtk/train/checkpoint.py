"""Atomic checkpoints, written in the background and readable under any strategy and world size.

Entries are keyed by parameter name (`model.<name>`, `optimizer.<name>.<field>`, `loop.<field>`), so that
torch.distributed.checkpoint reshards on load; under ZeRO-1 each rank stores and loads the entries that it owns. State
that a strategy keeps per rank (`rank_00003.<field>`) is loaded only if the layout is the same.
"""

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.optim import Optimizer

from diagnostics.contract.artifacts import CHECKPOINT_INFO, RunPaths, complete_checkpoints
from dtk.config.checkpoint_files import damaged, describe_files
from dtk.config.schema import CheckpointConfig
from dtk.errors import DtkError
from dtk.parallel.context import Context
from dtk.parallel.control import share_buffers
from dtk.parallel.regions import region
from dtk.parallel.tiers import Tier
from dtk.record.guard import report
from dtk.record.recorder import Recorder
from dtk.sharding.base import Strategy, owned_parameters, owned_state
from dtk.train.storage import PagedPlanner, Reader, Writer, in_words, is_out_of_memory

LOOK_S = 1.0  # Interval between two checks of the size of a checkpoint that is being written.


@dataclass(slots=True)
class LoopState:
    """The state of the loop besides weights and optimizer; everything else is a function of the step."""

    step: int = 0
    """Number of finished optimizer steps."""
    loss_scale: float = 1.0
    good_steps: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as checkpoint entries."""
        return {
            "loop.step": torch.tensor(self.step),
            "loop.loss_scale": torch.tensor(self.loss_scale, dtype=torch.float64),
            "loop.good_steps": torch.tensor(self.good_steps),
        }


@dataclass
class Checkpoints:
    """Writes and reads the checkpoints of one run; all ranks must call every method."""

    config: CheckpointConfig
    paths: RunPaths
    context: Context
    recorder: Recorder
    info: dict[str, Any]
    strategy: Strategy
    """Its `rank_state` is stored too."""

    def __post_init__(self) -> None:
        self.group = dist.new_group(backend="gloo", group_desc="checkpoint")
        self.pending: Future[Any] | None = None
        self.partial = self.paths.checkpoints
        """Folder of the checkpoint that is being written."""
        self.saved_step = -1
        self.keep_step: int | None = None
        """Step whose checkpoint is kept in addition to the newest ones."""
        self.more: Callable[[], dict[str, Tensor]] = dict
        """Returns further tensors to store; a resume loads those that the checkpoint has."""
        self.failure = ""
        """Why the last write failed, on rank 0; empty if it succeeded."""
        self.named = threading.Event()
        self.named.set()

    def save(
        self, model: nn.Module, optimizer: Optimizer, loop: LoopState, more: Mapping[str, Any] | None = None
    ) -> None:
        """Stage a copy of the state and write it in the background; the folder is renamed when all ranks are done.

        Training continues meanwhile. Rank 0 reports a failed write once; it does not stop training. `more` are JSON
        values of rank 0 to store in checkpoint.json.
        """
        self.wait()
        if loop.step == self.saved_step or self.paths.checkpoint(loop.step).exists():
            return
        self.saved_step = loop.step
        step, partial = loop.step, _hidden(self.paths.checkpoint(loop.step))
        with region("checkpoint"):
            self.recorder.event("checkpoint_begin", step=step)
            share_buffers(self.context, model)
            state = {**self.strategy.entries(model, optimizer), **loop.tensors(), **self.more(), **self._rank_state()}
            self.partial = partial
            self.pending = self._write(state, partial)
        if self.context.rank == 0:
            self.named.clear()
            self.pending.add_done_callback(lambda done: self._finish(done, step, partial, more or {}))
        if not self.config.asynchronous:
            self.wait()

    def _write(self, state: dict[str, Any], partial: Path) -> Future[Any]:
        """Write in the background from a staged copy, or synchronously if memory may not hold a second copy."""
        files = Writer(partial, single_file_per_rank=True, overwrite=True)
        options: dict[str, Any] = {"storage_writer": files, "process_group": self.group}
        if self.strategy.tier is None or self.strategy.tier.folder is None:
            future = async_save(state, async_stager=BlockingAsyncStager(), **options)
            assert isinstance(future, Future)
            return future
        writer = ThreadPoolExecutor(1)
        future = writer.submit(save, state, planner=PagedPlanner(self.strategy.tier), **options)
        writer.shutdown(wait=False)
        self._await(future)
        return future

    def wait(self) -> None:
        """Wait for the write in flight; when this returns, its checkpoint is complete or its failure is reported."""
        if self.pending is None:
            return
        self._await(self.pending)
        self.pending = None
        # Rank 0 renames the folder in a callback, which runs after the future is done: no rank may continue before.
        self.named.wait()
        dist.barrier(group=self.group)

    def _await(self, written: "Future[Any]") -> None:
        """Wait, with a heartbeat for the live watch whenever the files have grown: a write may take many minutes."""
        while not written.done():
            with region("checkpoint"):
                before = self._written_bytes()
                while not written.done() and self._written_bytes() == before:
                    wait([written], LOOK_S)

    def _written_bytes(self) -> int:
        with suppress(OSError):  # The folder was just renamed, or removed after a failure.
            return sum(path.stat().st_size for path in self.partial.iterdir())
        return 0

    def _finish(self, done: "Future[Any]", step: int, partial: Path, more: Mapping[str, Any]) -> None:
        """Rename the checkpoint on rank 0 when every rank has written, then remove the oldest ones."""
        try:
            if (error := done.exception()) is not None:
                raise error
            about = {**self.info, **more, "step": step, "files": describe_files(partial)}
            (partial / CHECKPOINT_INFO).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            partial.rename(self.paths.checkpoint(step))
            self.failure = ""
            self.recorder.event("checkpoint_end", step=step)
            kept_folder = None if self.keep_step is None else self.paths.checkpoint(self.keep_step)
            for old in (path for path in complete_checkpoints(self.paths)[: -self.config.keep] if path != kept_folder):
                # A rename never leaves an incomplete folder under the final name. One that cannot be removed stays.
                with suppress(OSError):
                    shutil.rmtree(old.rename(_hidden(old)), ignore_errors=True)
        except (Exception, CheckpointException) as error:
            shutil.rmtree(partial, ignore_errors=True)
            self.failure = in_words(error)
            report("checkpoint failed", self.failure)
        finally:
            self.named.set()

    @property
    def _private(self) -> str:
        return f"rank_{self.context.rank:05d}."

    def _rank_state(self) -> dict[str, Tensor]:
        """Return the state that the strategy keeps on this rank only, as entries."""
        return {f"{self._private}{name}": value for name, value in self.strategy.rank_state().items()}

    def _own_state(self, entries: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return this rank's tensors for the checkpoint to fill; if the layout differs, no rank loads any."""
        own = self._rank_state()
        stored = {key: getattr(entry, "size", None) for key, entry in entries.items() if key.startswith("rank_")}
        ranks = {key.split(".")[0] for key in stored}
        if not own or not ranks:
            return {}
        alike = len(ranks) == self.context.world_size and all(stored.get(key) == own[key].shape for key in own)
        agreed = torch.tensor(alike)
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self.group)
        if not agreed and self.context.rank == 0:
            report("resume", "the compression errors belong to a different layout and start at zero")
        return own if agreed else {}

    def _take(self, name: str, parameter: nn.Parameter, entries: Mapping[str, Any], folder: Path) -> None:
        key, of_state = f"model.{name}", f"optimizer.{name}."
        keys = [key, *(each for each in entries if each.startswith(of_state) and "." not in each[len(of_state) :])]
        values = {each: torch.empty(entries[each].size, dtype=entries[each].properties.dtype) for each in keys}
        load(values, storage_reader=Reader(folder), no_dist=True)
        value = values.pop(key)
        self.strategy.take(parameter, value, {each.removeprefix(of_state): v for each, v in values.items()})

    def shortfall(self) -> str:
        """Return on rank 0, after `wait`, one line on what a failed write costs; empty if the last write succeeded."""
        if not self.failure:
            return ""
        complete = complete_checkpoints(self.paths)
        newest = f"the newest one is {complete[-1].name}" if complete else "the run has no checkpoint"
        return f"the last checkpoint failed: {self.failure}; {newest}"

    def clean(self) -> None:
        """Remove incomplete checkpoints of an earlier attempt."""
        if self.context.rank == 0:
            for partial in self.paths.checkpoints.glob(".partial_step_*"):
                shutil.rmtree(partial, ignore_errors=True)
        dist.barrier(group=self.group)

    def load(self, folder: Path, model: nn.Module, optimizer: Optimizer) -> LoopState:
        """Load this rank's part of a checkpoint in place; DtkError if it is of another model or damaged."""
        reader = Reader(folder)
        try:
            entries = reader.read_metadata().state_dict_metadata
        except Exception as error:
            raise damaged(folder, f".metadata: {in_words(error)}") from error
        loop = LoopState().tensors()
        own = self._own_state(entries)
        more = {key: value for key, value in self.more().items() if key in entries}  # New callbacks have none.
        state = {f"model.{name}": value for name, value in self.strategy.outline(model).items()}
        outlined = {key for key, value in state.items() if getattr(value, "is_meta", False)}
        state |= {**loop, **own, **more}
        fresh = {} if outlined else _empty_optimizer_state(model, optimizer, entries, self.strategy.tier)
        for name, fields in fresh.items():
            state.update({f"optimizer.{name}.{field}": value for field, value in fields.items()})
        for key, value in sorted(state.items()):
            if (stored := getattr(entries.get(key), "size", None)) != value.shape:
                what = f"the checkpoint {folder} is of another model"
                why = f"it has no {key}" if stored is None else f"its {key} is {list(stored)}, not {list(value.shape)}"
                raise DtkError(what, why, "resume with the model that wrote it")
        state = {key: value for key, value in state.items() if key not in outlined}
        try:
            with region("checkpoint"):
                load(state, storage_reader=reader, process_group=self.group)
                for name, parameter in model.named_parameters() if outlined else ():
                    self._take(name, parameter, entries, folder)
        except CheckpointException as error:  # A problem with the files; a lost peer raises another exception.
            if is_out_of_memory(error):
                raise
            raise damaged(folder, in_words(error)) from error
        by_name = dict(model.named_parameters())
        owned = owned_state(optimizer)
        for name, fields in fresh.items():
            owned[by_name[name]].update(fields)
        if own:
            self.strategy.restore({key.removeprefix(self._private): value for key, value in own.items()})
        self.saved_step = int(loop["loop.step"])
        return LoopState(self.saved_step, float(loop["loop.loss_scale"]), int(loop["loop.good_steps"]))


def _empty_optimizer_state(
    model: nn.Module, optimizer: Optimizer, entries: dict[str, Any], tier: Tier | None
) -> dict[str, dict[str, Tensor]]:
    """Allocate the stored state of this rank's parameters; the checkpoint determines which fields exist."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    updated = {names[parameter]: parameter for parameter in owned_parameters(optimizer)}
    room: dict[str, dict[str, Tensor]] = {name: {} for name in updated}
    for key, stored in entries.items():
        name, _, field = key.removeprefix("optimizer.").rpartition(".")
        if key.startswith("optimizer.") and name in updated:
            p = updated[name]
            if stored.size == p.shape:  # State has the layout of its parameter, except scalars such as `step`.
                room[name][field] = torch.zeros_like(p) if tier is None else tier.room(p, field)
            else:
                room[name][field] = torch.zeros(stored.size, dtype=stored.properties.dtype)
    return room


def _hidden(checkpoint: Path) -> Path:
    """Return the path of an incomplete checkpoint; `clean` removes whatever is left under such a path."""
    return checkpoint.with_name(f".partial_{checkpoint.name}")
