"""Rules between fields, checked in the parent before any rank starts. Types are `strict`'s business.

Each rule is a function of the whole configuration and what was found of the machine; each failure
is one line that says what to type instead.
"""

import re
from dataclasses import dataclass

from diagnostics.contract.formatting import counted
from dtk.config.batch import check_batch
from dtk.config.fault_checks import check_fault
from dtk.config.limits import check_limits
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.parallel.mesh import divisors

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True)
class _Job:
    """What is checked: the configuration and where it will run."""

    config: Config
    world_size: int
    device: str
    cuda_devices: int


def check(config: Config, world_size: int, device: str, cuda_devices: int = 0) -> None:
    """Refuse what cannot run or would not mean what it says.

    Args:
        config: types are right already.
        world_size: ranks in all.
        device: `cpu` or `cuda`, as decided by the launcher.
        cuda_devices: CUDA devices on this machine.

    Raises:
        DtkError: the first rule that is broken.
    """
    check_limits(config)
    check_ranks(config, world_size, device, cuda_devices)
    job = _Job(config, world_size, device, cuda_devices)
    for rule in (_batch, _model, _sequence, _task, _strategy, _in_backward, _schedule):
        rule(job)
    check_fault(config, world_size)


def check_ranks(config: Config, world_size: int, device: str, cuda_devices: int = 0) -> None:
    """Refuse a number of ranks, or a device, that the strategy cannot have: before anyone divides a batch over them.

    Raises:
        DtkError: the first rule that is broken.
    """
    job = _Job(config, world_size, device, cuda_devices)
    for rule in (_device, _one_process, _ranks, _mesh):
        rule(job)


def _device(job: _Job) -> None:
    if (job.device == "cuda" or job.config.launcher.device == "cuda") and not job.cuda_devices:
        raise DtkError("launcher.device=cuda, but no CUDA device was found", fix="use launcher.device=cpu")
    if job.config.launcher.backend == "nccl" and job.device != "cuda":
        raise DtkError(
            "launcher.backend=nccl needs a GPU", "NCCL moves data between CUDA devices", "use launcher.backend=gloo"
        )


def _one_process(job: _Job) -> None:
    name, traits = job.config.strategy.name, job.config.strategy.traits
    if traits.one_process and job.world_size != 1:
        raise DtkError(
            f"strategy={name} is one process, not {job.world_size}",
            fix=f"use launcher.{_ranks_key(job)}=1, or strategy=ddp for several ranks",
        )
    devices = job.cuda_devices if job.device == "cuda" else 0
    if devices < traits.least_cuda_devices:
        raise DtkError(
            f"strategy={name} needs {counted(traits.least_cuda_devices, 'CUDA device')}, found {devices}",
            fix="use strategy=single or strategy=ddp",
        )


def _ranks_key(job: _Job) -> str:
    """Return the key that says how many ranks there are."""
    return "nproc" if job.config.launcher.world_size is None else "world_size"


def _ranks(job: _Job) -> None:
    """Raise DtkError if `launcher.world_size` is set and differs from the number of ranks of this run."""
    planned = job.config.launcher.world_size
    if planned is not None and planned != job.world_size:
        raise DtkError(
            f"launcher.world_size={planned}, but this run has {counted(job.world_size, 'rank')}",
            "a run has the ranks that are started",
            f"use launcher.nproc={planned}, or torchrun or srun with {counted(planned, 'rank')}, "
            "or launcher.world_size=null",
        )


def _mesh(job: _Job) -> None:
    job.config.strategy.mesh(job.world_size)


def _batch(job: _Job) -> None:
    check_batch(job.config, job.world_size)


def _model(job: _Job) -> None:
    model = job.config.model
    if not _NAME.fullmatch(model.name):
        raise DtkError(
            f'model.name="{model.name}" cannot be part of the run folder\'s name',
            "at most 64 letters, digits, and . _ + - after the first",
            "use model.name=my_model",
        )
    if model.architecture == "custom":
        return
    if model.width % model.heads:
        raise DtkError(
            f"model.width={model.width} does not divide into model.heads={model.heads}",
            fix=f"use model.heads={_nearest_divisor(model.width, model.heads)}",
        )
    if model.architecture != "llama":
        return
    if model.heads % model.kv_heads:
        raise DtkError(
            f"model.heads={model.heads} does not divide into model.kv_heads={model.kv_heads}",
            fix=f"use model.kv_heads={_nearest_divisor(model.heads, model.kv_heads)}",
        )
    if model.width // model.heads % 2:
        raise DtkError(
            f"model.width={model.width} over model.heads={model.heads} gives heads of odd size",
            "rotary positions turn pairs of features",
            f"use model.width={2 * model.heads * max(1, model.width // (2 * model.heads))}",
        )


def _sequence(job: _Job) -> None:
    length, context = job.config.data.sequence_length, job.config.model.context_length
    if length > context:
        raise DtkError(
            f"data.sequence_length={length} is longer than the model's context",
            f"model.context_length={context}",
            f"use data.sequence_length={context} or a larger model.context_length",
        )


def _task(job: _Job) -> None:
    """Raise DtkError if model and data do not match: encoders classify, other models predict the next token."""
    model, data = job.config.model, job.config.data
    if data.name == "classification" and model.architecture not in ("encoder", "custom"):
        raise DtkError(f"data=classification needs an encoder, not model={model.name}", fix="use model=bert_tiny")
    if model.architecture == "encoder" and data.name != "classification":
        raise DtkError(
            f"model={model.name} is an encoder: it needs labelled text, not data={data.name}",
            fix="use data=classification, or model=gpt2_tiny",
        )


def _strategy(job: _Job) -> None:
    job.config.strategy.check()


def _in_backward(job: _Job) -> None:
    """Raise DtkError for settings that do not work when the optimizer updates parameters inside backward."""
    config = job.config
    if not config.optimizer.in_backward:
        return
    if conflict := config.strategy.traits.in_backward_conflict:
        raise DtkError(
            f"optimizer.in_backward=true does not work under strategy={config.strategy.name}",
            conflict,
            "use strategy=single or strategy=fsdp",
        )
    if config.precision.initial_loss_scale is not None:
        raise DtkError(
            "optimizer.in_backward=true does not go with loss scaling",
            "the update comes before anyone knows of an overflow",
            "use precision=bf16",
        )
    if config.train.clip_norm is not None:
        raise DtkError(
            "optimizer.in_backward=true does not go with clipping",
            "the global norm is known only after backward",
            "use train.clip_norm=null",
        )
    plan = config.batch_plan(job.world_size)
    if plan.accumulation_steps > 1:
        raise DtkError(
            f"optimizer.in_backward=true does not go with accumulation over {plan.accumulation_steps} micro-batches",
            "each would update on its own",
            f"use train.micro_batch_size={plan.samples_per_rank}",
        )


def _schedule(job: _Job) -> None:
    """Phases must not overlap. A run that is over before its warm-up is, is a trial; the banner says so."""
    schedule, steps = job.config.schedule, job.config.train.steps
    if schedule.name == "wsd" and schedule.warmup_steps < steps < schedule.warmup_steps + schedule.decay_steps:
        raise DtkError(
            f"schedule.warmup_steps={schedule.warmup_steps} + schedule.decay_steps={schedule.decay_steps} "
            f"is more than train.steps={steps}",
            fix=f"use train.steps={schedule.warmup_steps + schedule.decay_steps} or shorter phases",
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    return min(divisors(number), key=lambda d: (abs(d - wanted), d))
