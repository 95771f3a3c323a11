"""The training loop: data -> forward -> backward -> clip -> optimizer -> log -> evaluate -> checkpoint.
Steps that do not log never synchronize with the device.
"""

import functools
import gc
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice, tee
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diagnostics.contract.formatting import counted
from dtk.config.schema import Config
from dtk.data.dataset import Batch, Dataset
from dtk.data.sampler import STEP, mix64, sample_ids, samples_sum
from dtk.parallel.batch_plan import BatchPlan
from dtk.parallel.context import Context
from dtk.parallel.control import Agreement, agree
from dtk.parallel.precision import LossScaler
from dtk.parallel.regions import communication, region
from dtk.parallel.stop import StopRequest
from dtk.record.guard import report
from dtk.record.memory import peak_memory_bytes
from dtk.record.numerics import Numerics
from dtk.record.recorder import Recorder
from dtk.train.callbacks import Callbacks
from dtk.train.checkpoint import Checkpoints, LoopState
from dtk.train.evaluation import evaluate
from dtk.train.optimizer import clip_factor, set_learning_rate
from dtk.train.progress import Measures, Progress, print_line, printing_elapsed
from dtk.train.schedule import Schedule, learning_rate
from dtk.train.setup import Parts


@dataclass(slots=True)
class StepResult:
    """Results of a step that are still on the device; reading them synchronizes."""

    loss_sum: Tensor
    """This rank's summed loss, a scalar."""
    targets: int
    """Valid targets in the global batch."""
    gradient_norm: Tensor | None


@dataclass(slots=True)
class Loop:
    """Trains from `state.step` to `config.train.steps`; one instance per rank."""

    config: Config
    context: Context
    dataset: Dataset
    parts: Parts
    recorder: Recorder
    checkpoints: Checkpoints
    stop: StopRequest
    scaler: LossScaler
    state: LoopState
    measures: Measures
    progress: Progress
    numerics: Numerics
    batch_plan: BatchPlan
    callbacks: Callbacks
    schedule: Schedule | None = None
    """A custom schedule; None for the built-in ones."""
    enough: bool = False
    """Whether a callback of some rank ended the run."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest metrics record."""
    speeds: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=10_000))
    """Step time in seconds and MFU of each logged window."""
    step_samples: int = 0
    """Sum of the mixed ids of this rank's samples in the step (`samples_sum`)."""
    samples: tuple[Iterator[np.ndarray], Iterator[Batch]] | None = None
    """Ids and content of this rank's micro-batches from the current step on; content may be prefetched."""
    inputs: list[Tensor] = field(default_factory=list)
    """Inputs of this rank's micro-batches in the step."""
    window_samples: int = 0
    """Sum of the mixed ids over all ranks since the last metrics record, modulo 2^64."""

    def run(self) -> bool:
        """Train to the end, or until a rank is asked to stop; return whether the run is complete.

        It is if all steps are done, or if a callback of some rank ended the run.
        """
        train = self.config.train
        if train.garbage_collect_every:
            gc.disable()
        self.measures.start(self.state.step)
        with self.callbacks.failures():
            while self.state.step < train.steps:
                if self.advance():
                    break
            self.checkpoints.wait()
            if self.state.step >= train.steps or self.enough:
                self.callbacks.each(lambda callback, training: callback.at_end(training))
        return self.state.step >= train.steps or self.enough

    def advance(self) -> bool:
        """Run one step, its evaluation and its checkpoint; return whether a rank requested a stop."""
        step = self.state.step
        self.recorder.begin_step(step + 1)
        self.callbacks.each(lambda callback, training: callback.before_step(training, step + 1))
        batches = self._batches(step)
        self.inputs = [batch.inputs for batch in batches if isinstance(batch.inputs, Tensor)]
        targets = 0
        if self.dataset.fixed_targets is None:
            targets = sum(self.parts.task.count(batch.targets) for batch in batches)
        enough = bool(self.callbacks.training.reason)
        agreement = agree(self.context, self.stop.requested, targets, self.step_samples, enough=enough)
        with printing_elapsed("compiling in the first step", self._compiles and step == self.progress.first_step):
            result = self._step(step, batches, agreement)
        self.window_samples = (self.window_samples + agreement.samples) % 2**64
        self.state.step = step + 1
        stopping, self.enough = agreement.stop, agreement.enough
        self._after_step(result, stopping)
        return stopping

    @property
    def _compiles(self) -> bool:
        return self.config.train.compile and self.context.rank == 0

    def _batches(self, step: int) -> list[Batch]:
        plan = self.batch_plan
        size, sizes = plan.accumulation_steps, (plan.global_batch_size, self.dataset.train_size)
        with region("data"):
            if self.samples is None:
                of_steps = (sample_ids(self.config.seed, later, *sizes) for later in count(step))
                places = [plan.positions(self.context.dp_rank, i) for i in range(size)]
                numbers, ahead = tee(ids[place] for ids in of_steps for place in places)
                self.samples = numbers, self.dataset.stream(ahead)
            numbers, batches = self.samples
            self.step_samples = samples_sum(step, np.concatenate(list(islice(numbers, size))))
            return list(islice(batches, size))

    def _step(self, step: int, batches: list[Batch], agreement: Agreement) -> StepResult:
        strategy, optimizer, config = self.parts.strategy, self.parts.optimizer, self.config
        set_learning_rate(optimizer, self._learning_rate(step))
        fixed = self.dataset.fixed_targets
        targets = agreement.valid_targets if fixed is None else fixed * config.train.global_batch_size
        total = self._accumulate(batches, strategy.loss_factor * self.scaler.scale / max(targets, 1))
        self.callbacks.each(lambda callback, training: callback.before_update(training, step + 1))
        norm = self._clip()
        with region("optimizer"):
            finite = True
            if self.scaler.enabled and norm is not None:
                finite = bool(torch.isfinite(norm))
                self.scaler.update(finite)
                self.state.loss_scale, self.state.good_steps = self.scaler.scale, self.scaler.good_steps
            if finite:
                optimizer.step()
            if strategy.tier is not None:
                strategy.tier.settle()
            optimizer.zero_grad(set_to_none=True)
        if strategy.clips_in_update and config.train.clip_norm is not None:
            norm = strategy.norm_of_update()
            self._watch(norm)
        return StepResult(total, targets, norm)

    def _learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(config.schedule, config.optimizer.lr, step, config.train.steps, self.schedule)

    def _accumulate(self, batches: list[Batch], factor: float) -> Tensor:
        """Run forward and backward over the micro-batches and return this rank's summed loss; faults override it."""
        place = self.config.seed, self.state.step, self.context.tokens_rank
        return self.parts.runner.run(batches, factor, functools.partial(seed_random, *place))

    def _clip(self) -> Tensor | None:
        """Clip the global gradient norm and undo the loss scale; return the norm before clipping."""
        max_norm = self.config.train.clip_norm
        if self.parts.strategy.clips_in_update or (max_norm is None and not self.scaler.enabled):
            return None
        with region("clip"):
            parameters = list(self.parts.model.parameters())
            norm = self.parts.strategy.gradient_norm(parameters) / self.scaler.scale
            if not self.scaler.enabled:  # Under loss scaling an overflow is expected: it lowers the scale.
                self._watch(norm)
            factor = torch.ones_like(norm) if max_norm is None else clip_factor(norm, max_norm)
            self.parts.strategy.scale_gradients(parameters, factor / self.scaler.scale)
        return norm

    def _watch(self, norm: Tensor | None) -> None:
        step = self.state.step + 1
        if norm is not None:
            self.numerics.gradient(step, norm, self.parts.model, wait=step % self.config.train.log_every == 0)

    def _after_step(self, result: StepResult, stopping: bool) -> None:
        train, step = self.config.train, self.state.step
        last = step == train.steps
        if self.progress.first_step + 1 == step:
            self.recorder.event("first_step", step=step)
        logs = step % train.log_every == 0 or last or stopping or step == self.progress.first_step + 1
        if logs:
            self._log(result)
        self.numerics.after_step(step, result.loss_sum, self.parts.model, logs, last, self.inputs)
        self.callbacks.each(lambda callback, training: callback.after_step(training, step, self.last if logs else None))
        if train.garbage_collect_every and step % train.garbage_collect_every == 0:
            with region("garbage_collection"):
                gc.collect(1)
        every = train.evaluate_every if self.dataset.validation_size else -1
        if (every > 0 and step % every == 0) or (last and every >= 0):
            self._evaluate()
        checkpoint = self.config.checkpoint
        due = checkpoint.every > 0 and step % checkpoint.every == 0
        if due or stopping or (last and checkpoint.at_end) or self.callbacks.training.keep_step == step:
            self.checkpoints.keep_step = self.callbacks.training.keep_step
            with self.measures.paused():
                more = {"callbacks": self.callbacks.state()}
                self.checkpoints.save(self.parts.model, self.parts.optimizer, self.state, more)
            self.callbacks.each(lambda callback, training: callback.after_checkpoint(training, step))

    def _log(self, result: StepResult) -> None:
        """Synchronize with the device, reduce the loss over ranks and write one record."""
        with region("logging"):
            # Ranks that share the work on the same tokens have the same sum: only one of them counts.
            loss = result.loss_sum * self.context.leads_tokens
            if self.context.world_size > 1:
                with communication("all_reduce", loss.nbytes, "dp"):
                    dist.all_reduce(loss)
            value = float(loss) / max(result.targets, 1)
            norm = None if result.gradient_norm is None else float(result.gradient_norm)
        record = {
            "step": self.state.step,
            "loss": value,
            "lr": self._learning_rate(self.state.step - 1),
            "grad_norm": norm,
            **self.measures.window(self.state.step),
            **self.parts.runner.figures(),
            **self.parts.strategy.figures(),
            "peak_memory_bytes": peak_memory_bytes(self.context.device),
            "samples_hash": f"{self.window_samples:016x}",
        }
        if self.context.rank == 0 and (overflows := record.get("float16_overflows")):
            which = f"{counted(round(overflows), 'averaged gradient')} up to step {self.state.step}"
            why = "as float16 overflows above 65,504; strategy.communication_hook=bf16 has the range of float32"
            report("strategy.communication_hook=fp16", f"{which} became infinite, {why}")
        self.last, self.window_samples = record, 0
        self.speeds.append((record["step_time_s"], record["mfu"]))
        self.recorder.metrics({"attempt": self.recorder.attempt, **record})
        if self.context.rank == 0:
            print_line(self.progress.line(record))

    def _evaluate(self) -> None:
        self.callbacks.each(lambda callback, training: callback.before_evaluation(training, self.state.step))
        began_s = time.perf_counter()
        with self.measures.paused(), printing_elapsed("evaluating, compiling in the first one", self._compiles):
            figures = evaluate(self.config, self.context, self.dataset, self.parts)
        elapsed_s = time.perf_counter() - began_s
        self.recorder.event("evaluation", step=self.state.step, time_taken_s=elapsed_s)
        about = {"attempt": self.recorder.attempt, "step": self.state.step}
        self.recorder.metrics({**about, **figures, "evaluation_time_s": elapsed_s})
        self.last = {**self.last, **figures}
        self.callbacks.each(lambda callback, training: callback.after_evaluation(training, self.state.step, figures))
        if self.context.rank == 0:
            metrics = ""
            for name in (*self.parts.task.metric_names, *self.parts.task.collected()):
                if (value := figures.get(f"validation_{name}")) is None:
                    continue
                metrics += f"  {name.replace('_', ' ')} "
                metrics += f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4g}"
            if (classes := self.dataset.classes) and (seen := round(figures["validation_classes"])) < classes:
                metrics += f" (only {seen} of {classes} classes occur in it)"
            print_line(
                f"evaluation at step {self.state.step}: loss {figures['validation_loss']:.4f}{metrics}  "
                f"{counted(round(figures['validation_samples']), 'held-out sample')}, {elapsed_s:.1f} s"
            )


def seed_random(seed: int, step: int, dp_rank: int, micro_batch: int) -> None:
    """Seed Python's, numpy's and torch's generators (CPU and CUDA) for the forward pass of one micro-batch.

    A resumed run therefore draws the same random numbers (dropout) again. Ranks with the same data-parallel coordinate
    (tensor or pipeline parallel) draw the same numbers, so that their replicas stay equal.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in (seed, step, dp_rank, micro_batch):
        state = mix64(state ^ mix64(np.array([part], dtype=np.uint64)) + STEP)
    value = int(state[0])
    random.seed(value)
    np.random.seed(value % 2**32)
    # Not torch.manual_seed: for each kind of device that is not in use it keeps a formatted stack, at 0.15 ms per call.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
