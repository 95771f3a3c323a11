"""Rules between keys, checked in the parent before any rank starts. `strict` checks types."""

import math
import re

from diagnostics.contract.formatting import counted
from diagnostics.contract.mesh import divisors
from dtk.config.batch import check_batch
from dtk.config.fault_checks import check_fault
from dtk.config.limits import check_limits
from dtk.config.placement import check_device
from dtk.config.schema import Config, LlamaConfig, MoEConfig
from dtk.errors import DtkError
from dtk.parallel.pipeline import SCHEDULES, stage_sizes
from dtk.strategies.registry import NATIVE, alternatives, for_several_ranks
from dtk.strategies.traits import Traits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def check(config: Config, world_size: int, device: str, cuda_devices: int = 0, *, numbers: bool = True) -> None:
    """Refuse, by DtkError, what cannot run or would mislead; without `numbers`, they are known to be in range."""
    if numbers:
        check_limits(config)
    check_ranks(config, world_size, device, cuda_devices)
    check_batch(config, world_size)
    _pipeline(config, world_size)
    _model(config)
    _experts(config)
    _tensor_parallel(config)
    _context_parallel(config)
    _task(config)
    config.strategy.check()
    config.strategy.check_job(config, world_size)
    _engine(config)
    _in_backward(config, world_size)
    _states(config)
    check_fault(config, world_size)


def check_ranks(config: Config, world_size: int, device: str, cuda_devices: int = 0) -> None:
    """Reject ranks or a device that the strategy does not support, before the batch is divided, with DtkError."""
    launcher = config.launcher
    check_device(device if launcher.device == "auto" else launcher.device, launcher.backend, cuda_devices)
    name, traits = config.strategy.name, config.strategy.traits
    if traits.one_process and world_size != 1:
        key = "nproc" if launcher.world_size is None else "world_size"
        fix = f"use launcher.{key}=1, or {for_several_ranks()} for several ranks"
        raise DtkError(f"strategy={name} runs in one process, not {world_size}", fix=fix)
    usable = cuda_devices if device == "cuda" else 0
    if usable < (least := traits.least_cuda_devices):
        what = f"strategy={name} needs {counted(least, 'CUDA device')}, found {usable}"
        raise DtkError(what, fix=f"use {alternatives(lambda other: other.least_cuda_devices <= usable)}")
    if launcher.world_size not in (None, world_size):
        planned = launcher.world_size
        what = f"launcher.world_size={planned}, but this run has {counted(world_size, 'rank')}"
        start = f"use launcher.nproc={planned}, or torchrun or srun with {counted(planned, 'rank')}"
        raise DtkError(what, "a run uses the ranks that are started", f"{start}, or launcher.world_size=null")
    config.strategy.on(config.mesh(world_size))


def _clash(typed: str, conflict: str, why: str, instead: str) -> DtkError:
    """Return the error for two mutually exclusive choices, with what to type instead."""
    return DtkError(f"{typed} is incompatible with {conflict}", why, f"use {instead}")


def _runs_in_engine(traits: Traits) -> bool:
    """Return whether another library's engine can wrap the model as a strategy with these traits does."""
    units = traits.shards_parameters and not (traits.library or traits.replicated_over)
    return units or (traits.gradients_in == "buckets" and not traits.sharded)


def _engine(config: Config) -> None:
    """Raise DtkError for settings that another library's engine would run differently."""
    if config.engine == NATIVE:
        return
    section, scaled = config.strategy, config.precision.initial_loss_scale is not None
    traits, default, native = section.traits, type(section)(name=section.name), f"engine={NATIVE}"
    runs = _runs_in_engine(traits)
    sharded = runs and traits.shards_parameters
    unknown = ("blocks_per_unit", "prefetch_depth", "quantized_weights", "quantized_gradients") if sharded else ()
    given = {key: getattr(section, key) for key in unknown if getattr(section, key) != getattr(default, key)}
    if sharded and not isinstance(section.reshard_after_forward, bool):
        given["reshard_after_forward"] = section.reshard_after_forward
    changed = " ".join(f"strategy.{key}={str(value).lower()}" for key, value in given.items())
    wraps = "it wraps the model in DistributedDataParallel, or in FSDP2 over all ranks"
    for holds, typed, why, instead in (
        (not runs, f"strategy={section.name}", wraps, f"{alternatives(_runs_in_engine)}, or {native}"),
        (config.parallel.cut, " ".join(config.parallel.cut), "it wraps whole models", native),
        (scaled, f"precision={config.precision.name}", "both would scale the loss", "precision=bf16"),
        (changed, changed, f"{config.engine} has no such setting", native),
    ):
        if holds:
            raise _clash(f"engine={config.engine}", typed, why, instead)


def _pipeline(config: Config, world_size: int) -> None:
    """Raise DtkError for what a pipeline does not support or would do differently."""
    parallel = config.parallel
    typed = f"parallel.pp={parallel.pp}"
    if parallel.pp == 1:
        for key, default in (("stages_per_rank", 1), ("blocks_per_stage", [])):
            if (value := getattr(parallel, key)) != default:
                what = f"parallel.{key}={value} needs a pipeline"
                raise DtkError(what, typed, f"use parallel.pp=2, or parallel.{key}={default}")
        return
    pipeline = parallel.pipeline(config.batch_plan(world_size).accumulation_steps)
    pipeline.check()
    if config.model.architecture == "custom":
        why = "dtk does not know which of its modules run before and after its blocks"
        raise _clash(typed, f"your own model (model={config.model.name})", why, "parallel.pp=1")
    if pipeline.vee and (config.model.architecture == "gpt" or getattr(config.model, "tie_weights", False)):
        why = "the first and the last stage share a rank, which would hold the embedding twice under one name"
        tied = f"the tied embeddings of model={config.model.name}"
        raise _clash(f"parallel.schedule={parallel.schedule}", tied, why, "parallel.schedule=zero_bubble")
    if pipeline.stages > config.model.layers:
        per_rank = f" x parallel.stages_per_rank={parallel.stages_per_rank}" if parallel.stages_per_rank > 1 else ""
        what = f"{typed}{per_rank} makes {pipeline.stages} stages of {counted(config.model.layers, 'block')}"
        near = max(pp for pp in divisors(parallel.pp) if pp <= config.model.layers)
        several = config.model.layers // near
        fix = f"use parallel.pp={near}" if near < parallel.pp or not per_rank else "use"
        if per_rank:
            fix += f" parallel.stages_per_rank={several}" + (" parallel.schedule=1f1b" if several == 1 else "")
        raise DtkError(what, "a stage has at least one block", fix)
    sizes = parallel.blocks_per_stage
    if sizes and (len(sizes) != pipeline.stages or sum(sizes) != config.model.layers or min(sizes) < 1):
        what = f"parallel.blocks_per_stage={sizes} does not divide {counted(config.model.layers, 'block')}"
        why = f"there are {pipeline.stages} stages, each with a block or more"
        fitting = stage_sizes(config.model.layers, pipeline.stages)
        raise DtkError(what, why, f"use 'parallel.blocks_per_stage=[{','.join(map(str, fitting))}]'")
    mesh = config.mesh(world_size)
    strategy = config.strategy.on(mesh)
    if SCHEDULES[parallel.schedule].splits and strategy.traits.shards_parameters and not strategy.gathers_once:
        why = "the two halves of its backwards need gathered parameters, which it does not keep throughout a step"
        split, name = f"parallel.schedule={parallel.schedule}", config.strategy.name
        other = "interleaved_1f1b" if parallel.stages_per_rank > 1 else "1f1b"
        whole = alternatives(lambda traits: "pp" in traits.dimensions and not traits.shards_parameters)
        raise _clash(split, f"strategy={name}", why, f"{whole}, or parallel.schedule={other}")
    for key in ("static_graph", "find_unused_parameters"):
        if getattr(strategy, key, False):
            why = "forward and backward of several micro-batches alternate, which DDP cannot follow"
            raise _clash(f"strategy.{key}=true", typed, why, f"strategy.{key}=false")


def _model(config: Config) -> None:
    model = config.model
    if not _NAME.fullmatch(model.name):
        what = f'model.name="{model.name}" cannot be part of the run folder\'s name'
        raise DtkError(what, "at most 64 letters, digits, and . _ + - after the first", "use model.name=my_model")
    if model.architecture == "custom":
        return
    for whole, parts in (("width", "heads"), ("heads", "kv_heads")):
        number, by = getattr(model, whole), getattr(model, parts, 1)
        if number % by:
            what = f"model.{whole}={number} cannot be split into model.{parts}={by}"
            raise DtkError(what, fix=f"use model.{parts}={_nearest_divisor(number, by)}")
    if isinstance(model, LlamaConfig) and model.width // model.heads % 2:
        what = f"model.width={model.width} over model.heads={model.heads} gives heads of odd size"
        fix = f"use model.width={2 * model.heads * max(1, model.width // (2 * model.heads))}"
        raise DtkError(what, "rotary positions rotate pairs of features", fix)


def _experts(config: Config) -> None:
    """Raise DtkError for experts that cannot be divided, or are requested where they do not work."""
    model, ep, strategy = config.model, config.parallel.ep, config.strategy
    if not isinstance(model, MoEConfig):
        if ep > 1:
            what = f"parallel.ep={ep} divides experts, and model={model.name} has none"
            raise DtkError(what, fix="use model=moe_tiny, or parallel.ep=1")
        return
    once, some = "a token is sent to each expert at most once", "at least one block has experts"
    for key, most, why in (("experts_per_token", model.experts, once), ("dense_layers", model.layers - 1, some)):
        if getattr(model, key) > most:
            raise DtkError(f"model.{key}={getattr(model, key)} is more than {most}", why, f"use model.{key}={most}")
    if model.experts % ep:
        raise _indivisible("model.experts", model.experts, "parallel.ep", ep)
    if config.parallel.placement == "dp" and config.parallel.tp > 1 < ep:
        why = "ep divides consecutive ranks of dp_shard x cp x tp"
        raise _clash(f"parallel.ep={ep}", "parallel.placement=dp", why, "parallel.placement=tp")
    parallel, compiled = config.parallel, "torch.compile and DataParallel do not follow where tokens go"
    divided = [f"parallel.{name}={getattr(parallel, name)}" for name in ("cp", "tp") if getattr(parallel, name) > 1]
    whole = parallel.tp > 1 and not parallel.sequence_parallel
    repeats, competes = "ranks of tp would send the same tokens", "the tokens that an expert accepts would depend on it"
    for holds, conflict, why, instead in (
        (config.train.compile, "train.compile=true", compiled, "train.compile=false"),
        (strategy.traits.least_cuda_devices > 1, f"strategy={strategy.name}", compiled, for_several_ranks()),
        (whole, "parallel.sequence_parallel=false", repeats, "parallel.sequence_parallel=true"),
        (divided and model.capacity_factor, " ".join(divided), competes, "model.capacity_factor=null"),
    ):
        if holds:
            raise _clash(f"model={model.name}", conflict, why, instead)


def _tensor_parallel(config: Config) -> None:
    """Raise DtkError if tensor parallelism cannot shard the model evenly, or dropout would differ between ranks."""
    tp = config.parallel.tp
    if tp == 1:
        return
    model, chosen = config.model, f"parallel.tp={tp}"
    if model.architecture == "custom":
        raise DtkError(f"{chosen} cannot shard your own model", "its layers declare no plan", "use parallel.tp=1")
    parts = [("model.heads", model.heads), ("model.vocab_size", model.vocab_size)]
    of_all = [key for key in ("kv_heads", "ffn_width") if hasattr(model, key)]
    inner = ["expert_width"] if getattr(model, "shared_experts", 0) else []
    parts += [(f"model.{key}", getattr(model, key)) for key in of_all + inner]
    if config.parallel.sequence_parallel:
        parts.append(("data.sequence_length", config.data.sequence_length))
    for key, number in parts:
        if number % tp:
            raise _indivisible(key, number, "parallel.tp", tp, only_more=key == "model.vocab_size")
    if getattr(model, "dropout", 0.0) and not config.parallel.sequence_parallel:
        what = f"{chosen} with model.dropout={model.dropout} needs parallel.sequence_parallel=true"
        why = "replicated activations need the same dropout mask on every rank, sharded ones need different masks"
        raise DtkError(what, why, "use parallel.sequence_parallel=true or model.dropout=0")
    if config.train.compile:
        raise _clash(chosen, "train.compile=true", "", "train.compile=false")


def _context_parallel(config: Config) -> None:
    """Raise DtkError if a sequence or its heads do not divide over the ranks, or attention does not support cp."""
    parallel, model, length = config.parallel, config.model, config.data.sequence_length
    cp, chosen = parallel.cp, f"parallel.cp={parallel.cp}"
    if cp == 1:
        return
    if model.architecture in ("custom", "encoder"):
        why = "an encoder needs whole samples" if model.architecture == "encoder" else "its attention is local"
        raise _clash(chosen, f"model={model.name}", why, "parallel.cp=1, or a GPT or Llama")
    others = {"data=custom": config.data.name == "custom", "task._target_": config.task._target_}
    others[f"task={config.task.name}"] = config.task.name not in ("auto", "language_modeling")
    for conflict in (conflict for conflict, is_chosen in others.items() if is_chosen):
        raise _clash(chosen, conflict, "targets are sharded with the tokens, one per token", "parallel.cp=1")
    if config.train.compile:
        raise _clash(chosen, "train.compile=true", "", "train.compile=false")
    ring = parallel.context == "ring"
    cut = parallel.tp if parallel.sequence_parallel else 1
    parts = math.lcm(2 * cp, cp * cut) if ring else cp * cut
    if length % parts:
        over = f"{chosen} parallel.context={parallel.context}" + (f" parallel.tp={cut}" if cut > 1 else "")
        why, what = f"it is cut into {2 * cp if ring else cp} equal parts", f"data.sequence_length={length}"
        fix = f"use {_multiples('data.sequence_length', length, parts)}"
        raise DtkError(f"{what} cannot be split over {over}", why, fix)
    if getattr(model, "dropout", 0.0) and ring:
        typed, instead = f"{chosen} parallel.context=ring", "parallel.context=ulysses or model.dropout=0"
        raise _clash(typed, f"model.dropout={model.dropout}", "its attention has no dropout", instead)
    for key, number in (("heads", model.heads), ("kv_heads", getattr(model, "kv_heads", model.heads))):
        if not ring and number % (cp * parallel.tp):
            over = f"{chosen} parallel.context=ulysses" + (f" parallel.tp={parallel.tp}" if parallel.tp > 1 else "")
            fix = f"use parallel.context=ring, or parallel.cp={math.gcd(number // parallel.tp, cp)}"
            what = f"model.{key}={number} cannot be split over {over}"
            raise DtkError(what, "each rank attends with its own heads", fix)


def _task(config: Config) -> None:
    """Raise DtkError if model and data do not match: encoders classify, other models predict the next token."""
    model, data = config.model, config.data
    if data.sequence_length > (context := model.context_length):
        what = f"data.sequence_length={data.sequence_length} is longer than the model's context"
        fix = f"use data.sequence_length={context} or a larger model.context_length"
        raise DtkError(what, f"model.context_length={context}", fix)
    if data.name == "classification" and model.architecture not in ("encoder", "custom"):
        raise DtkError(f"data=classification needs an encoder, not model={model.name}", fix="use model=bert_tiny")
    if model.architecture == "encoder" and data.name not in ("classification", "custom"):
        what = f"model={model.name} is an encoder: it needs labelled text, not data={data.name}"
        raise DtkError(what, fix="use data=classification, or model=gpt2_tiny")


def _in_backward(config: Config, world_size: int) -> None:
    """Raise DtkError for settings that do not work when the optimizer updates parameters inside backward."""
    if not config.optimizer.in_backward:
        return
    pp, tp, scale = config.parallel.pp, config.parallel.tp, config.precision.initial_loss_scale
    plan, conflict = config.batch_plan(world_size), config.strategy.traits.in_backward_conflict
    steps, off = f"accumulation over {plan.accumulation_steps} micro-batches", "optimizer.in_backward=false"
    samples = f"train.micro_batch_size={plan.samples_per_rank}"
    for holds, other, why, instead in (
        (pp > 1, f"parallel.pp={pp}", "shared weights get gradients in several backwards", off),
        (conflict, f"strategy={config.strategy.name}", conflict, alternatives(lambda of: not of.in_backward_conflict)),
        (tp > 1, f"parallel.tp={tp}", "some gradients are complete only after backward", off),
        (scale is not None, "loss scaling", "the update happens before an overflow can be detected", "precision=bf16"),
        (config.train.clip_norm, "clipping", "the global norm is known only after backward", "train.clip_norm=null"),
        (plan.accumulation_steps > 1, steps, "each of them would update the parameters", samples),
    ):
        if holds:
            raise _clash("optimizer.in_backward=true", other, why, instead)


def _states(config: Config) -> None:
    """Raise DtkError for states that the strategy cannot keep or move, and for overlapping phases of the schedule."""
    strategy, typed = config.strategy, f"strategy.offload={config.strategy.offload}"
    if strategy.remembers_error and config.precision.initial_loss_scale is not None:
        hook = f"strategy.communication_hook={strategy.communication_hook} with strategy.error_feedback=true"
        why = "the error kept for the next step depends on a loss scale that changes, and is not finite after an"
        instead = "strategy.error_feedback=false, or precision=bf16"
        raise _clash(hook, f"precision={config.precision.name}", f"{why} overflow", instead)
    if strategy.offload not in ("none", *strategy.traits.offloads):
        why, instead = "its forward needs whole parameters on the device", strategy.traits.needs_less_memory
        raise _clash(typed, f"strategy={strategy.name}", why, f"strategy.offload=optimizer or strategy={instead}")
    if strategy.offload_to == "nvme" and strategy.offload == "none":
        raise DtkError("strategy.offload_to=nvme moves nothing", typed, "use strategy.offload=optimizer")
    if (strategy.offload_to == "nvme") != bool(folder := strategy.offload_folder):
        what = f"strategy.offload_to={strategy.offload_to} with strategy.offload_folder={folder or 'null'}"
        fix = "use strategy.offload_to=nvme strategy.offload_folder=FOLDER, both or neither"
        raise DtkError(what, "the folder holds the file of offloaded states", fix)
    # A run shorter than its warm-up is a trial; the banner mentions it.
    schedule, steps = config.schedule, config.train.steps
    if schedule.name == "wsd" and schedule.warmup_steps < steps < schedule.warmup_steps + schedule.decay_steps:
        phases = f"schedule.warmup_steps={schedule.warmup_steps} + schedule.decay_steps={schedule.decay_steps}"
        fix = f"use train.steps={schedule.warmup_steps + schedule.decay_steps} or shorter phases"
        raise DtkError(f"{phases} is more than train.steps={steps}", fix=fix)


def _indivisible(key: str, number: int, degree: str, parts: int, only_more: bool = False) -> DtkError:
    """Return the error for a number that a degree does not divide, with the nearest valid values.

    `only_more`: offer no smaller number: a smaller vocabulary may lack tokens of the data.
    """
    multiples = f"{key}={-(-number // parts) * parts}" if only_more else _multiples(key, number, parts)
    fix = f"use {degree}={_nearest_divisor(number, parts)}, or {multiples}"
    return DtkError(f"{key}={number} cannot be split into {degree}={parts} equal parts", fix=fix)


def _multiples(key: str, number: int, parts: int) -> str:
    """Format the nearest multiples of `parts` as overrides: `model.heads=4 or model.heads=8`."""
    return " or ".join(f"{key}={n}" for n in (number // parts * parts, -(-number // parts) * parts) if n)


def _nearest_divisor(number: int, wanted: int) -> int:
    return min(divisors(number), key=lambda d: (abs(d - wanted), d))
