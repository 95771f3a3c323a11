"""Rules between fields, checked in the parent before any rank starts. Types are `strict`'s business.

Each failure is one line that says what to type instead.
"""

import math
import re

from diagnostics.contract.formatting import counted
from dtk.config.batch import check_batch
from dtk.config.fault_checks import check_fault
from dtk.config.limits import check_limits
from dtk.config.schema import Config, LlamaConfig, MoEConfig
from dtk.errors import DtkError
from dtk.parallel.mesh import divisors
from dtk.parallel.pipeline import SCHEDULES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


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
    check_batch(config, world_size)
    _pipeline(config, world_size)
    _model(config)
    _experts(config)
    _tensor_parallel(config)
    _context_parallel(config)
    _sequence(config)
    _task(config)
    config.strategy.check()
    _error_feedback(config)
    _in_backward(config, world_size)
    _schedule(config)
    check_fault(config, world_size)


def check_ranks(config: Config, world_size: int, device: str, cuda_devices: int = 0) -> None:
    """Refuse a number of ranks, or a device, that the strategy cannot have: before anyone divides a batch over them.

    Raises:
        DtkError: the first rule that is broken.
    """
    launcher = config.launcher
    if (device == "cuda" or launcher.device == "cuda") and not cuda_devices:
        raise DtkError("launcher.device=cuda, but no CUDA device was found", fix="use launcher.device=cpu")
    if launcher.backend == "nccl" and device != "cuda":
        raise DtkError(
            "launcher.backend=nccl needs a GPU", "NCCL moves data between CUDA devices", "use launcher.backend=gloo"
        )
    _one_process(config, world_size, cuda_devices if device == "cuda" else 0)
    if launcher.world_size not in (None, world_size):
        planned = counted(launcher.world_size, "rank")
        raise DtkError(
            f"launcher.world_size={launcher.world_size}, but this run has {counted(world_size, 'rank')}",
            "a run has the ranks that are started",
            f"use launcher.nproc={launcher.world_size}, or torchrun or srun with {planned}, "
            "or launcher.world_size=null",
        )
    config.strategy.on(config.mesh(world_size))


def _one_process(config: Config, world_size: int, cuda_devices: int) -> None:
    name, traits = config.strategy.name, config.strategy.traits
    if traits.one_process and world_size != 1:
        key = "nproc" if config.launcher.world_size is None else "world_size"
        raise DtkError(
            f"strategy={name} is one process, not {world_size}",
            fix=f"use launcher.{key}=1, or strategy=ddp for several ranks",
        )
    if cuda_devices < traits.least_cuda_devices:
        raise DtkError(
            f"strategy={name} needs {counted(traits.least_cuda_devices, 'CUDA device')}, found {cuda_devices}",
            fix="use strategy=single or strategy=ddp",
        )


def _pipeline(config: Config, world_size: int) -> None:
    """Raise DtkError for what a pipeline cannot do, or would do otherwise than it says."""
    parallel = config.parallel
    typed = f"parallel.pp={parallel.pp}"
    if parallel.pp == 1:
        if parallel.stages_per_rank > 1:
            raise DtkError(
                f"parallel.stages_per_rank={parallel.stages_per_rank} needs a pipeline",
                typed,
                "use parallel.pp=2, or parallel.stages_per_rank=1",
            )
        return
    pipeline = parallel.pipeline(config.batch_plan(world_size).accumulation_steps)
    pipeline.check()
    if config.model.architecture == "custom":
        raise DtkError(
            f"{typed} does not go with model={config.model.name}, a model of your own",
            "dtk does not know which of its modules run before and after its blocks",
            "use parallel.pp=1",
        )
    if pipeline.stages > config.model.layers:
        per_rank = f" x parallel.stages_per_rank={parallel.stages_per_rank}" if parallel.stages_per_rank > 1 else ""
        raise DtkError(
            f"{typed}{per_rank} makes {pipeline.stages} stages of {counted(config.model.layers, 'block')}",
            "a stage has at least one block",
            f"use parallel.pp={config.model.layers // parallel.stages_per_rank or 1}",
        )
    mesh = config.mesh(world_size)
    strategy = config.strategy.on(mesh)
    alone = mesh.world_size == parallel.pp and not strategy.traits.shards_parameters
    if SCHEDULES[parallel.schedule].splits and not alone:
        raise DtkError(
            f"parallel.schedule={parallel.schedule} does not go with several ranks for a stage or a sharded one",
            "weight gradients that are computed apart do not reach the hooks that reduce them",
            "use parallel.schedule=1f1b, or strategy=ddp with as many ranks as stages",
        )
    for key in ("static_graph", "find_unused_parameters"):
        if getattr(strategy, key, False):
            raise DtkError(
                f"strategy.{key}=true does not go with {typed}",
                "forward and backward of several micro-batches alternate, which DDP cannot follow",
                f"use strategy.{key}=false",
            )
    if config.optimizer.in_backward:
        raise DtkError(
            f"optimizer.in_backward=true does not go with {typed}",
            "each micro-batch has a backward of its own, and shared weights are summed after the last",
            "use optimizer.in_backward=false",
        )


def _model(config: Config) -> None:
    model = config.model
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
    if not isinstance(model, LlamaConfig):
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


def _experts(config: Config) -> None:
    """Raise DtkError for experts that cannot be divided, or are asked for where they do not work."""
    model, ep = config.model, config.parallel.ep
    if not isinstance(model, MoEConfig):
        if ep > 1:
            raise DtkError(
                f"parallel.ep={ep} divides experts, and model={model.name} has none",
                fix="use model=moe_tiny, or parallel.ep=1",
            )
        return
    for key, most, why in (
        ("experts_per_token", model.experts, "a token goes to each expert once at most"),
        ("dense_layers", model.layers - 1, "at least one block has experts"),
    ):
        if getattr(model, key) > most:
            raise DtkError(f"model.{key}={getattr(model, key)} is more than {most}", why, f"use model.{key}={most}")
    if model.experts % ep:
        near = _nearest_divisor(model.experts, ep)
        raise DtkError(
            f"model.experts={model.experts} does not divide into parallel.ep={ep} equal parts",
            fix=f"use parallel.ep={near}, or model.experts={-(-model.experts // ep) * ep}",
        )
    others = {typed: f"{typed.partition('=')[0]}=1" for typed in config.parallel.cut if ".ep=" not in typed}
    if config.train.compile:
        others["train.compile=true"] = "train.compile=false"
    if config.strategy.traits.least_cuda_devices > 1:
        others[f"strategy={config.strategy.name}"] = "strategy=ddp"
    for typed, instead in others.items():
        raise DtkError(
            f"model={model.name} does not go with {typed}",
            "experts are whole, or divided over parallel.ep, in models that are neither cut otherwise nor compiled",
            f"use {instead}",
        )


def _tensor_parallel(config: Config) -> None:
    """Raise DtkError if tensor parallelism cannot cut the model evenly, or would draw dropout that differs."""
    tp = config.parallel.tp
    if tp == 1:
        return
    model, chosen = config.model, f"parallel.tp={tp}"
    if model.architecture == "custom":
        raise DtkError(f"{chosen} cannot cut a model of your own", "its layers do not say how", "use parallel.tp=1")
    parts = [("model.heads", model.heads), ("model.vocab_size", model.vocab_size)]
    if model.architecture == "llama":
        parts = [*parts, ("model.kv_heads", model.kv_heads), ("model.ffn_width", model.ffn_width)]
    if config.parallel.sequence_parallel:
        parts.append(("data.sequence_length", config.data.sequence_length))
    for key, number in parts:
        if number % tp:
            ways = [f"{key}={n}" for n in (number // tp * tp, -(-number // tp) * tp) if n]
            near = _nearest_divisor(number, tp)
            raise DtkError(
                f"{key}={number} does not divide into {chosen} equal parts",
                fix=f"use parallel.tp={near}, or {' or '.join(ways)}",
            )
    if getattr(model, "dropout", 0.0) and not config.parallel.sequence_parallel:
        raise DtkError(
            f"{chosen} with model.dropout={model.dropout} needs parallel.sequence_parallel=true",
            "activations that every rank repeats need equal masks, those that it has a part of different ones",
            "use parallel.sequence_parallel=true or model.dropout=0",
        )
    if config.train.compile:
        raise DtkError(f"{chosen} does not go with train.compile=true", fix="use train.compile=false")


def _context_parallel(config: Config) -> None:
    """Raise DtkError if a sequence or its heads do not divide over the ranks, or attention cannot reach them."""
    parallel, model, length = config.parallel, config.model, config.data.sequence_length
    cp, chosen = parallel.cp, f"parallel.cp={parallel.cp}"
    if cp == 1:
        return
    if model.architecture in ("custom", "encoder"):
        why = "an encoder reads whole samples" if model.architecture == "encoder" else "its attention sees one rank"
        raise DtkError(f"{chosen} does not go with model={model.name}", why, "use parallel.cp=1, or a GPT or Llama")
    own = [
        typed
        for typed, is_own in (("data=custom", config.data.name == "custom"), ("task._target_", config.task._target_))
        if is_own
    ]
    if own or config.task.name not in ("auto", "language_modeling"):
        raise DtkError(
            f"{chosen} does not go with {own[0] if own else f'task={config.task.name}'}",
            "targets are cut with the tokens, one for each",
            "use parallel.cp=1",
        )
    if config.train.compile:
        raise DtkError(f"{chosen} does not go with train.compile=true", fix="use train.compile=false")
    ring = parallel.context == "ring"
    cut = parallel.tp if parallel.sequence_parallel else 1
    parts = math.lcm(2 * cp, cp * cut) if ring else cp * cut
    if length % parts:
        ways = [f"data.sequence_length={n}" for n in (length // parts * parts, -(-length // parts) * parts) if n]
        why = f"it is cut into {2 * cp if ring else cp} equal parts"
        raise DtkError(
            f"data.sequence_length={length} does not divide over {chosen} parallel.context={parallel.context}"
            + (f" parallel.tp={cut}" if cut > 1 else ""),
            why,
            f"use {' or '.join(ways)}",
        )
    if getattr(model, "dropout", 0.0) and ring:
        raise DtkError(
            f"{chosen} parallel.context=ring does not go with model.dropout={model.dropout}",
            "its attention has no dropout",
            "use parallel.context=ulysses or model.dropout=0",
        )
    for key, number in (("heads", model.heads), ("kv_heads", getattr(model, "kv_heads", model.heads))):
        if not ring and number % (cp * parallel.tp):
            raise DtkError(
                f"model.{key}={number} does not divide over {chosen} parallel.context=ulysses"
                + (f" parallel.tp={parallel.tp}" if parallel.tp > 1 else ""),
                "each rank attends with its own heads",
                f"use parallel.context=ring, or parallel.cp={math.gcd(number // parallel.tp, cp)}",
            )


def _sequence(config: Config) -> None:
    length, context = config.data.sequence_length, config.model.context_length
    if length > context:
        raise DtkError(
            f"data.sequence_length={length} is longer than the model's context",
            f"model.context_length={context}",
            f"use data.sequence_length={context} or a larger model.context_length",
        )


def _task(config: Config) -> None:
    """Raise DtkError if model and data do not match: encoders classify, other models predict the next token."""
    model, data = config.model, config.data
    if data.name == "classification" and model.architecture not in ("encoder", "custom"):
        raise DtkError(f"data=classification needs an encoder, not model={model.name}", fix="use model=bert_tiny")
    if model.architecture == "encoder" and data.name not in ("classification", "custom"):
        raise DtkError(
            f"model={model.name} is an encoder: it needs labelled text, not data={data.name}",
            fix="use data=classification, or model=gpt2_tiny",
        )


def _error_feedback(config: Config) -> None:
    """Raise DtkError for errors of compression that outlive the loss scale in which they were made."""
    if config.strategy.remembers_error and config.precision.initial_loss_scale is not None:
        raise DtkError(
            f"strategy.communication_hook={config.strategy.communication_hook} with strategy.error_feedback=true does "
            f"not go with precision={config.precision.name}",
            "what is kept for the next step is in units of a loss scale that changes, and not finite after an overflow",
            "use strategy.error_feedback=false, or precision=bf16",
        )


def _in_backward(config: Config, world_size: int) -> None:
    """Raise DtkError for settings that do not work when the optimizer updates parameters inside backward."""
    if not config.optimizer.in_backward:
        return
    if conflict := config.strategy.traits.in_backward_conflict:
        raise DtkError(
            f"optimizer.in_backward=true does not work under strategy={config.strategy.name}",
            conflict,
            "use strategy=single or strategy=fsdp",
        )
    if config.parallel.tp > 1:
        raise DtkError(
            f"optimizer.in_backward=true does not go with parallel.tp={config.parallel.tp}",
            "some gradients are complete only after backward",
            "use optimizer.in_backward=false",
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
    plan = config.batch_plan(world_size)
    if plan.accumulation_steps > 1:
        raise DtkError(
            f"optimizer.in_backward=true does not go with accumulation over {plan.accumulation_steps} micro-batches",
            "each would update on its own",
            f"use train.micro_batch_size={plan.samples_per_rank}",
        )


def _schedule(config: Config) -> None:
    """Phases must not overlap. A run that is over before its warm-up is, is a trial; the banner says so."""
    schedule, steps = config.schedule, config.train.steps
    if schedule.name == "wsd" and schedule.warmup_steps < steps < schedule.warmup_steps + schedule.decay_steps:
        raise DtkError(
            f"schedule.warmup_steps={schedule.warmup_steps} + schedule.decay_steps={schedule.decay_steps} "
            f"is more than train.steps={steps}",
            fix=f"use train.steps={schedule.warmup_steps + schedule.decay_steps} or shorter phases",
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    return min(divisors(number), key=lambda d: (abs(d - wanted), d))
