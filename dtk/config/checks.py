"""Rules between keys, checked in the parent before any rank starts, with their texts in YAML. `strict` checks types."""

import math
import re
from functools import partial

from diagnostics.contract.mesh import divisors
from dtk.config.batch import check_batch
from dtk.config.fault_checks import check_fault
from dtk.config.limits import check_limits
from dtk.config.placement import check_device
from dtk.config.schema import Config, LlamaConfig, MoEConfig
from dtk.errors import DtkError, Errors
from dtk.parallel.pipeline import SCHEDULES, stage_sizes
from dtk.sharding.registry import NATIVE, alternatives, for_several_ranks, needs_less_memory
from dtk.sharding.traits import Traits

_errors = Errors(__file__)
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
    traits, usable = config.strategy.traits, cuda_devices if device == "cuda" else 0
    rules = {
        "one_process": traits.one_process and world_size != 1,
        "cuda_devices": usable < traits.least_cuda_devices,
        "other_ranks": launcher.world_size not in (None, world_size),
    }
    figures = {"key": "nproc" if launcher.world_size is None else "world_size", "least": traits.least_cuda_devices}
    instead = partial(alternatives, lambda other: other.least_cuda_devices <= usable)
    _errors.refuse(
        rules, world_size=world_size, usable=usable, several=for_several_ranks, instead=instead, **figures, c=config
    )
    config.strategy.on(config.mesh(world_size))


def _runs_in_engine(traits: Traits) -> bool:
    """Return whether another library's engine can wrap the model as a strategy with these traits does."""
    units = traits.shards_parameters and not (traits.library or traits.replicated_over)
    return units or (traits.gradients_in == "buckets" and not traits.sharded)


def _engine(config: Config) -> None:
    if config.engine == NATIVE:
        return
    section, traits, runs = config.strategy, config.strategy.traits, _runs_in_engine(config.strategy.traits)
    default = type(section)(name=section.name)
    sharded = runs and traits.shards_parameters
    unknown = ("blocks_per_unit", "prefetch_depth", "quantized_weights", "quantized_gradients") if sharded else ()
    given = {key: getattr(section, key) for key in unknown if getattr(section, key) != getattr(default, key)}
    if sharded and not isinstance(section.reshard_after_forward, bool):
        given["reshard_after_forward"] = section.reshard_after_forward
    rules = {
        "engine_strategy": not runs,
        "engine_cut": config.parallel.cut,
        "engine_scaled": config.precision.initial_loss_scale is not None,
        "engine_setting": given,
    }
    changed = " ".join(f"strategy.{key}={str(value).lower()}" for key, value in given.items())
    _errors.refuse(rules, changed=changed, native=NATIVE, instead=partial(alternatives, _runs_in_engine), c=config)


def _pipeline(config: Config, world_size: int) -> None:
    parallel, model = config.parallel, config.model
    if parallel.pp == 1:
        for key, default in (("stages_per_rank", 1), ("blocks_per_stage", [])):
            changed = {"no_pipeline": (value := getattr(parallel, key)) != default}
            _errors.refuse(changed, key=key, value=str(value), default=str(default), c=config)
        return
    pipeline = parallel.pipeline(config.batch_plan(world_size).accumulation_steps)
    pipeline.check()
    tied = model.architecture == "gpt" or getattr(model, "tie_weights", False)
    _errors.refuse({"pipeline_custom": model.architecture == "custom", "vee_tied": pipeline.vee and tied}, c=config)
    if pipeline.stages > model.layers:
        near = max(pp for pp in divisors(parallel.pp) if pp <= model.layers)
        typed, fewer = [f"parallel.pp={parallel.pp}"], [f"parallel.pp={near}"] if near < parallel.pp else []
        if parallel.stages_per_rank > 1:
            typed.append(f"parallel.stages_per_rank={parallel.stages_per_rank}")
            fewer.append(f"parallel.stages_per_rank={model.layers // near}")
            fewer += ["parallel.schedule=1f1b"] if model.layers == near else []
        raise _errors("stages", c=config, pipeline=pipeline, typed=" x ".join(typed), instead=" ".join(fewer))
    sizes = parallel.blocks_per_stage
    if sizes and (len(sizes) != pipeline.stages or sum(sizes) != model.layers or min(sizes) < 1):
        fitting = ",".join(map(str, stage_sizes(model.layers, pipeline.stages)))
        raise _errors("blocks_per_stage", c=config, pipeline=pipeline, sizes=str(sizes), fitting=fitting)
    strategy = config.strategy.on(config.mesh(world_size))
    whole = partial(alternatives, lambda traits: "pp" in traits.dimensions and not traits.shards_parameters)
    split = SCHEDULES[parallel.schedule].splits and strategy.traits.shards_parameters and not strategy.gathers_once
    other = "interleaved_1f1b" if parallel.stages_per_rank > 1 else "1f1b"
    _errors.refuse({"split_backward": split}, whole=whole, other=other, c=config)
    for key in ("static_graph", "find_unused_parameters"):
        _errors.refuse({"alternating": getattr(strategy, key, False)}, key=key, c=config)


def _model(config: Config) -> None:
    model = config.model
    _errors.refuse({"model_name": not _NAME.fullmatch(model.name)}, c=config)
    if model.architecture == "custom":
        return
    for whole, parts in (("width", "heads"), ("heads", "kv_heads")):
        number, by = getattr(model, whole), getattr(model, parts, 1)
        near = partial(_nearest_divisor, number, by)
        _errors.refuse(
            {"model_parts": number % by}, whole=whole, parts=parts, number=number, by=by, near=near, c=config
        )
    width = 2 * model.heads * max(1, model.width // (2 * model.heads))
    _errors.refuse(
        {"odd_heads": isinstance(model, LlamaConfig) and model.width // model.heads % 2}, width=width, c=config
    )


def _experts(config: Config) -> None:
    model, parallel, strategy = config.model, config.parallel, config.strategy
    if not isinstance(model, MoEConfig):
        _errors.refuse({"no_experts": parallel.ep > 1}, c=config)
        return
    sparse = model.layers - 1
    rules = {"experts_per_token": model.experts_per_token > model.experts, "dense_layers": model.dense_layers > sparse}
    _errors.refuse(rules, sparse=sparse, c=config)
    if model.experts % parallel.ep:
        raise _indivisible("model.experts", model.experts, "parallel.ep", parallel.ep)
    divided = [f"parallel.{name}={getattr(parallel, name)}" for name in ("cp", "tp") if getattr(parallel, name) > 1]
    rules = {
        "ep_placement": parallel.placement == "dp" and parallel.tp > 1 < parallel.ep,
        "experts_compiled": config.train.compile,
        "experts_strategy": strategy.traits.least_cuda_devices > 1,
        "experts_whole_sequences": parallel.tp > 1 and not parallel.sequence_parallel,
        "experts_capacity": bool(divided and model.capacity_factor),
    }
    _errors.refuse(rules, several=for_several_ranks, divided=" ".join(divided), c=config)


def _tensor_parallel(config: Config) -> None:
    model, parallel = config.model, config.parallel
    if parallel.tp == 1:
        return
    _errors.refuse({"tp_custom": model.architecture == "custom"}, c=config)
    parts = [("model.heads", model.heads), ("model.vocab_size", model.vocab_size)]
    of_all = [key for key in ("kv_heads", "ffn_width") if hasattr(model, key)]
    inner = ["expert_width"] if getattr(model, "shared_experts", 0) else []
    parts += [(f"model.{key}", getattr(model, key)) for key in of_all + inner]
    if parallel.sequence_parallel:
        parts.append(("data.sequence_length", config.data.sequence_length))
    for key, number in parts:
        if number % parallel.tp:
            raise _indivisible(key, number, "parallel.tp", parallel.tp, only_more=key == "model.vocab_size")
    dropout = getattr(model, "dropout", 0.0)
    rules = {"tp_dropout": dropout and not parallel.sequence_parallel, "tp_compiled": config.train.compile}
    _errors.refuse(rules, dropout=dropout, c=config)


def _context_parallel(config: Config) -> None:
    parallel, model, length = config.parallel, config.model, config.data.sequence_length
    cp = parallel.cp
    if cp == 1:
        return
    why = "an encoder needs whole samples" if model.architecture == "encoder" else "its attention is local"
    _errors.refuse({"cp_model": model.architecture in ("custom", "encoder")}, why=why, c=config)
    others = {"data=custom": config.data.name == "custom", "task._target_": config.task._target_}
    others[f"task={config.task.name}"] = config.task.name not in ("auto", "language_modeling")
    for conflict, is_chosen in others.items():
        _errors.refuse({"cp_targets": is_chosen}, conflict=conflict, c=config)
    ring, dropout = parallel.context == "ring", getattr(model, "dropout", 0.0)
    cut = parallel.tp if parallel.sequence_parallel else 1
    parts, equal = (math.lcm(2 * cp, cp * cut), 2 * cp) if ring else (cp * cut, cp)
    over = f"parallel.cp={cp} parallel.context={parallel.context}" + (f" parallel.tp={cut}" if cut > 1 else "")
    rules = {"cp_compiled": config.train.compile, "cp_length": length % parts, "ring_dropout": ring and dropout}
    multiples = partial(_multiples, "data.sequence_length", length, parts)
    _errors.refuse(rules, over=over, equal=equal, multiples=multiples, dropout=dropout, c=config)
    for key, number in (("heads", model.heads), ("kv_heads", getattr(model, "kv_heads", model.heads))):
        if not ring and number % (cp * parallel.tp):
            over = f"parallel.cp={cp} parallel.context=ulysses"
            over += f" parallel.tp={parallel.tp}" if parallel.tp > 1 else ""
            near = math.gcd(number // parallel.tp, cp)
            raise _errors("cp_heads", key=key, number=number, over=over, cp=near)


def _task(config: Config) -> None:
    model, data = config.model, config.data
    is_encoder = model.architecture == "encoder"
    rules = {
        "context_length": data.sequence_length > model.context_length,
        "labels_need_encoder": data.name == "classification" and model.architecture not in ("encoder", "custom"),
        "encoder_needs_labels": is_encoder and data.name not in ("classification", "custom"),
    }
    _errors.refuse(rules, c=config)


def _in_backward(config: Config, world_size: int) -> None:
    if not config.optimizer.in_backward:
        return
    plan = config.batch_plan(world_size)
    rules = {
        "in_backward_pipeline": config.parallel.pp > 1,
        "in_backward_strategy": config.strategy.traits.in_backward_conflict,
        "in_backward_tp": config.parallel.tp > 1,
        "in_backward_scaled": config.precision.initial_loss_scale is not None,
        "in_backward_clipping": config.train.clip_norm,
        "in_backward_accumulation": plan.accumulation_steps > 1,
    }
    _errors.refuse(rules, plan=plan, instead=partial(alternatives, lambda of: not of.in_backward_conflict), c=config)


def _states(config: Config) -> None:
    strategy, schedule, scaled = config.strategy, config.schedule, config.precision.initial_loss_scale is not None
    # A run shorter than its warm-up is a trial; the banner mentions it.
    phases = schedule.warmup_steps + schedule.decay_steps if schedule.name == "wsd" else 0
    rules = {
        "error_feedback": strategy.remembers_error and scaled,
        "offload": strategy.offloads_parameters and not strategy.traits.shards_parameters,
        "offload_nothing": strategy.offload_to == "nvme" and strategy.offload == "none",
        "offload_folder": (strategy.offload_to == "nvme") != bool(strategy.offload_folder),
        "phases": phases and schedule.warmup_steps < config.train.steps < phases,
    }
    less = partial(needs_less_memory, strategy.traits)
    _errors.refuse(rules, folder=strategy.offload_folder or "null", phases=phases, less=less, c=config)


def _indivisible(key: str, number: int, degree: str, parts: int, only_more: bool = False) -> DtkError:
    """Return the error for a number that a degree does not divide, with the nearest valid values.

    `only_more`: offer no smaller number: a smaller vocabulary may lack tokens of the data.
    """
    multiples = f"{key}={-(-number // parts) * parts}" if only_more else _multiples(key, number, parts)
    near, about = _nearest_divisor(number, parts), {"key": key, "number": number, "degree": degree, "parts": parts}
    return _errors("indivisible", near=near, multiples=multiples, **about)


def _multiples(key: str, number: int, parts: int) -> str:
    """Format the nearest multiples of `parts` as overrides: `model.heads=4 or model.heads=8`."""
    return " or ".join(f"{key}={n}" for n in (number // parts * parts, -(-number // parts) * parts) if n)


def _nearest_divisor(number: int, target: int) -> int:
    return min(divisors(number), key=lambda d: (abs(d - target), d))
