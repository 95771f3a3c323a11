"""How long one optimizer step takes on a known device: compute, communication, and what of it nothing hides.

Turns a configuration into what `schedule` walks and `alpha_beta` prices. Needs no process group and no memory.
"""

import dataclasses
import functools
from collections.abc import Sequence
from math import prod

from dtk.config.schema import Config
from dtk.parallel.pipeline import SENDS, Action, stage_blocks
from dtk.parallel.pipeline import walk as walk_pipeline
from dtk.plan.formulas.owners import owned_elements
from dtk.plan.formulas.stages import message_bytes
from dtk.plan.formulas.traffic import link
from dtk.plan.prediction import Prediction, Time, Transfer
from dtk.plan.timing.alpha_beta import Cost, Group, collective
from dtk.plan.timing.hardware import Hardware
from dtk.plan.timing.schedule import Bucket, Price, Sharded, Unit, Walk, ddp_micro_batch, fsdp_micro_batch, update
from dtk.plan.timing.work import Layout, Seconds, clip_seconds, count, layout, micro_batch_seconds, optimizer_seconds
from dtk.record.metrics import model_flops_utilization
from dtk.strategies.ddp import bucket_calls, gradient_buckets, used_bitmap
from dtk.strategies.declared import ITEM_BYTES, Shape, padded_elements, reduced_item_bytes


def predict_time(prediction: Prediction, config: Config, hardware: Hardware, local_size: int | None = None) -> Time:
    """One optimizer step of the planned job.

    Args:
        prediction: says how many ranks and which batch.
        config: the job, its micro-batch settled.
        hardware: what the devices and their links can do.
        local_size: ranks per node; None = as many as the hardware has devices in a node.

    Raises:
        DtkError: the model cannot be built, or the hardware does not know the precision.
    """
    world_size = prediction.world_size
    model = layout(config)
    seconds = micro_batch_seconds(config, model, hardware)
    if config.parallel.pp > 1:
        return _pipeline(prediction, config, model, seconds, local_size or hardware.devices_per_node, hardware)
    walk = Walk(
        _price(config, world_size, local_size or hardware.devices_per_node, hardware), hardware.backend == "gloo"
    )
    rounds = max(1, config.batch_plan(world_size).accumulation_steps)
    if config.strategy.traits.shards_parameters:
        updating_s = _walk_sharded(walk, config, model, seconds, world_size, rounds, hardware)
    else:
        updating_s = _walk_replicated(walk, config, model, seconds, world_size, rounds, hardware)
    return _time(walk, updating_s, prediction, config, model, hardware)


def _pipeline(
    prediction: Prediction, config: Config, model: Layout, seconds: Seconds, local_size: int, hardware: Hardware
) -> Time:
    """Time a step of a pipeline: each stage as a data-parallel job of its own, set into the order of the schedule.

    What a stage communicates in every micro-batch lengthens its forward and backward; what it reduces and updates after
    its last one follows the whole schedule, on the slowest rank.
    """
    world_size, parallel = prediction.world_size, config.parallel
    mesh = config.mesh(world_size)
    alone = dataclasses.replace(config, parallel=dataclasses.replace(parallel, pp=1, stages_per_rank=1))
    count = config.batch_plan(world_size).accumulation_steps
    schedule = parallel.pipeline(count)
    price = _price(alone, mesh.dp_size, local_size, hardware)

    def walked(blocks: range, rounds: int) -> tuple[Walk, float]:
        first, last = blocks.start == 0, blocks.stop == len(model.blocks)
        part = dataclasses.replace(
            model,
            before=model.before if first else (),
            blocks=tuple(model.blocks[i] for i in blocks),
            after=model.after if last else (),
        )
        ends = seconds if last else dataclasses.replace(seconds, head_forward=0.0, head_backward=0.0)
        walk = Walk(price, hardware.backend == "gloo")
        walks = _walk_sharded if config.strategy.traits.shards_parameters else _walk_replicated
        return walk, walks(walk, alone, part, ends, mesh.dp_size, rounds, hardware)

    stages = stage_blocks(len(model.blocks), schedule.stages)
    wholes = [walked(blocks, count) for blocks in stages]
    per_micro_batch_s = [walked(blocks, 2)[0].end_s - walked(blocks, 1)[0].end_s for blocks in stages]
    tails_s = [walk.end_s - count * each for (walk, _), each in zip(wholes, per_micro_batch_s, strict=True)]

    def action_s(action: Action) -> float:
        blocks = stages[action.stage]
        last = blocks.stop == len(model.blocks)
        forward = len(blocks) * seconds.block_forward + last * seconds.head_forward
        backward = len(blocks) * seconds.block_backward + last * seconds.head_backward
        backward += seconds.block_forward * sum(_recomputed(config, i) for i in blocks)
        part = forward if action.kind == "forward" else backward
        share = part / (forward + backward)
        return per_micro_batch_s[action.stage] * (share / 2 if "gradient" in action.kind else share)

    size_bytes = message_bytes(config)
    near = link(2, mesh.stride("pp"), world_size, local_size) == "intra_node"
    message = collective("broadcast", size_bytes, Group(2, 2 if near else 1, hardware.intra_node, hardware.inter_node))
    timeline = walk_pipeline(schedule, action_s, message.seconds)
    places = [range(rank, schedule.stages, schedule.ranks) for rank in range(schedule.ranks)]
    busiest = max(places, key=lambda place: sum(wholes[stage][0].compute_s for stage in place))
    step_s = timeline.end_s + max(sum(tails_s[stage] for stage in place) for place in places)
    whole = Walk(price, now_s=step_s)
    for stage in busiest:
        whole.compute_s += wholes[stage][0].compute_s
        for key, transfer in wholes[stage][0].transfers.items():
            whole.transfers[key] = transfer
    messages = sum(action.kind in SENDS for action in schedule.orders()[busiest[0]])
    whole.transfers["send", "pp", "point to point"] = Transfer(
        "send", "pp", "point to point", messages, messages * size_bytes, messages * message.seconds
    )
    updating_s = sum(wholes[stage][1] for stage in busiest)
    time = _time(whole, updating_s, prediction, config, model, hardware)
    bubble_s = max(0.0, step_s - sum(wholes[stage][0].end_s for stage in busiest))
    return dataclasses.replace(time, bubble_s=bubble_s, exposed_s=time.exposed_s - bubble_s)


def _time(
    walk: Walk, updating_s: float, prediction: Prediction, config: Config, model: Layout, hardware: Hardware
) -> Time:
    """Return the timing figures of a plan, computed from the walk."""
    step_s = walk.end_s
    tokens_per_s = config.train.global_batch_size * config.data.sequence_length / step_s
    dtype = "tf32" if config.precision.tf32 else config.precision.compute_dtype
    peak = hardware.peak_flops.get(dtype)
    mfu, _ = model_flops_utilization(
        tokens_per_s, model.flops_per_token, prediction.world_size, peak, "no peak is known"
    )
    return Time(
        compute_s=walk.compute_s,
        communication_s=walk.communication_s,
        exposed_s=step_s - walk.compute_s,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        mfu=mfu,
        scaling_efficiency=walk.compute_s / step_s,
        optimizer_s=updating_s,
        transfers=tuple(transfer for transfer in walk.transfers.values() if transfer.seconds),
        assumptions=tuple(_assumptions(config, hardware)),
        matmul_dtype=dtype,
        peak_flops=peak,
    )


def _assumptions(config: Config, hardware: Hardware) -> list[str]:
    """Return the assumptions that the reader must know before trusting the time."""
    said = ["Launching kernels, loading data and logging are taken to hide behind the device's work."]
    if hardware.backend == "gloo":
        said = ["What the host does between operations is not in the time: on the CPU small models take longer."]
    assumed = sorted(key for key, source in hardware.sources.items() if source.startswith("assumption"))
    if assumed:
        said.append(f"Figures of hardware={hardware.name} that no data sheet gives: {', '.join(assumed)}.")
    if getattr(config.strategy, "cpu_offload", False):
        said.append("Copies between host and device and the update on the host (cpu_offload) are not in the time.")
    if (hook := getattr(config.strategy, "communication_hook", "none")) in ("int8", "topk", "powersgd"):
        said.append(f"The arithmetic of communication_hook={hook} is not in the time.")
    if config.strategy.traits.least_cuda_devices > 1:
        said.append(
            f"strategy={config.strategy.name} is timed as one device: its copies inside the process are not modelled."
        )
    if config.strategy.traits.gradients_in is None and config.strategy.traits.collectives:
        said.append(f"What strategy={config.strategy.name} communicates is not in the time: its schedule is not known.")
    if config.model.architecture == "custom":
        said.append("Of a model of your own only FLOPs are counted, not what its other kernels move.")
    if config.train.compile:
        said.append("torch.compile is not modelled: kernels are counted one by one.")
    return said


def _price(config: Config, world_size: int, local_size: int, hardware: Hardware) -> Price:
    """Return the function that prices a call over each group; equal calls are computed once."""
    mesh = config.mesh(world_size)
    replicas, shards = mesh.dp_replicate, mesh.dp_shard
    groups = {
        "dp": (world_size, min(local_size, world_size)),
        "dp_shard": (shards, min(local_size, shards)),
        # Ranks of one dp_replicate group lie `shards` apart.
        "dp_replicate": (replicas, min(max(1, local_size // shards), replicas)),
    }
    placed = {name: Group(*sizes, hardware.intra_node, hardware.inter_node) for name, sizes in groups.items()}

    @functools.cache
    def price(op: str, group: str, size_bytes: float) -> Cost:
        if op == "reduce_scatter" and hardware.backend == "gloo":
            # torch's gloo reduces the whole buffer everywhere and keeps a part.
            return collective("all_reduce", size_bytes, placed[group])
        return collective(op, size_bytes, placed[group])

    return price


def _recomputed(config: Config, block: int) -> bool:
    every = config.train.activation_checkpoint_every
    return every > 0 and block % every == 0


def _walk_replicated(
    walk: Walk, config: Config, model: Layout, seconds: Seconds, world_size: int, rounds: int, hardware: Hardware
) -> float:
    """Walk ddp and zero1, and single and dp, which communicate nothing; returns the seconds of the update."""
    forward_s = len(model.blocks) * seconds.block_forward + seconds.head_forward
    communicates = config.strategy.traits.gradients_in == "buckets" and world_size > 1
    if communicates:
        buckets = _buckets(config, model, seconds, world_size)
    else:
        buckets = [Bucket(sum(fill for fill, _ in _gradients(config, model, seconds)), ())]
    walk.repeat(rounds - 1, lambda once: ddp_micro_batch(once, forward_s, buckets, last=False))
    ddp_micro_batch(walk, forward_s, buckets, last=communicates)
    shapes = model.shapes
    owners = owned_elements(shapes, world_size) if config.strategy.traits.deals_out_parameters else [count(shapes)]
    norm_s, scale_s = clip_seconds(config, count(shapes), hardware)
    updating_s = update(walk, norm_s, scale_s, optimizer_seconds(config, max(owners), hardware), None)
    if config.strategy.traits.deals_out_parameters and communicates:
        # Each rank sends what it updated, after all have updated; one without parameters sends an element all the same.
        for owned in owners:
            walk.communicate("broadcast", "dp", 4 * max(1, owned))
    return updating_s


def _gradients(config: Config, model: Layout, seconds: Seconds) -> list[tuple[float, Shape]]:
    """Backward, parameter by parameter from the last to the first: its share of the compute, and its shape.

    A part's compute is shared out by the size of its parameters. The output projection comes first, also where its
    weights are tied to the embedding, whose gradient is complete only at the end.
    """
    parts: list[tuple[float, tuple[Shape, ...]]] = [(0.0, model.before)]
    for i, block in enumerate(model.blocks):
        again_s = seconds.block_forward if _recomputed(config, i) else 0.0
        parts.append((seconds.block_backward + again_s, block))
    parts.append((seconds.head_backward, model.after))
    done: list[tuple[float, Shape]] = []
    carried_s = 0.0
    for part_s, shapes in reversed(parts):
        whole = count(shapes)
        if not whole:
            carried_s += part_s
            continue
        for shape in reversed(shapes):
            done.append((carried_s + part_s * prod(shape) / whole, shape))
            carried_s = 0.0
    return done


def _buckets(config: Config, model: Layout, seconds: Seconds, ranks: int) -> list[Bucket]:
    """DDP's buckets in the order in which backward fills them, as they travel."""
    gradients = _gradients(config, model, seconds)
    shapes = model.shapes
    strategy = config.strategy
    buckets = []
    for members in gradient_buckets(strategy.bucket_cap_mb, shapes):
        fill_s = sum(gradients[i][0] for i in members)
        buckets.append(Bucket(fill_s, tuple(bucket_calls(strategy, [gradients[i][1] for i in members], ranks))))
    # The search for unused parameters ends when backward is over.
    return buckets + [Bucket(0.0, (("all_reduce", more.size_bytes),)) for more in used_bitmap(strategy, shapes)]


def _walk_sharded(
    walk: Walk, config: Config, model: Layout, seconds: Seconds, world_size: int, rounds: int, hardware: Hardware
) -> float:
    """Walk fsdp, zero2, zero3 and hsdp; returns the seconds of the update."""
    sharded = _sharded(config, model, seconds, world_size)
    walk.repeat(rounds - 1, lambda once: fsdp_micro_batch(once, sharded, last=False))
    fsdp_micro_batch(walk, sharded, last=True)
    held = padded_elements(model.shapes, sharded.shards) // sharded.shards
    norm_s, scale_s = clip_seconds(config, held, hardware)
    return update(walk, norm_s, scale_s, optimizer_seconds(config, held, hardware), "dp_shard")


def _sharded(config: Config, model: Layout, seconds: Seconds, world_size: int) -> Sharded:
    """Return the units of fully_shard with what each computes, gathers and reduces."""
    strategy, precision = config.strategy, config.precision
    mesh = config.mesh(world_size)
    replicas, shards = mesh.dp_replicate, mesh.dp_shard
    compute = ITEM_BYTES[precision.compute_dtype]
    reduce = reduced_item_bytes(precision)

    def unit(forward_s: float, backward_s: float, shapes: Sequence[Shape]) -> Unit:
        padded = padded_elements(shapes, shards)
        return Unit(forward_s, backward_s, compute * padded, reduce * padded)

    size = strategy.blocks_per_unit
    units, rest = [], [*model.before, *model.after]
    forward_s, backward_s = seconds.head_forward, seconds.head_backward
    for first in range(0, len(model.blocks), size or max(len(model.blocks), 1)):
        numbers = range(first, min(first + size, len(model.blocks)) if size else len(model.blocks))
        shapes = [shape for i in numbers for shape in model.blocks[i]]
        ahead_s = len(numbers) * seconds.block_forward
        back_s = len(numbers) * seconds.block_backward + seconds.block_forward * sum(
            _recomputed(config, i) for i in numbers
        )
        if size:
            units.append(unit(ahead_s, back_s, shapes))
        else:
            rest, forward_s, backward_s = [*rest, *shapes], forward_s + ahead_s, backward_s + back_s
    root = unit(forward_s, backward_s, rest)
    return Sharded(tuple(units), root, strategy.reshard_after_forward, strategy.prefetch_depth, shards, replicas > 1)
