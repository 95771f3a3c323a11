"""Time of one optimizer step on a known device: compute, communication, and its exposed part."""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from diagnostics.contract.mesh import SECONDARY, Mesh
from dtk.config.schema import Config
from dtk.dimensions import inside
from dtk.parallel.pipeline import Action, Pipeline, walk as walk_pipeline
from dtk.plan.formulas.closed_form import link
from dtk.plan.formulas.holding import owned_elements
from dtk.plan.formulas.prediction import Time, Transfer, notes
from dtk.plan.formulas.stages import message_bytes, messages, on_mesh, stage_states, states_mesh, sums_of_gradients
from dtk.plan.timing import work
from dtk.plan.timing.alpha_beta import Cost, Group, collective
from dtk.plan.timing.hardware import Hardware
from dtk.plan.timing.schedule import Bucket, Price, Sharded, Unit, Walk, ddp_micro_batch, fsdp_micro_batch, update
from dtk.plan.timing.work import Layout, layout
from dtk.record.metrics import model_flops_utilization
from dtk.sharding.declared import ITEM_BYTES, Collective, Shape, reduced_item_bytes, shard_elements, wire_bytes

_STEADY_ROUNDS = 4  # A schedule repeats from this round on; a round has as many micro-batches as ranks.


def step_time(config: Config, world_size: int, hardware: Hardware) -> Time:
    """Predict one optimizer step, in which each pipeline stage is a separate data-parallel job.

    Stages run in the order of the schedule; without a pipeline there is one stage. What a stage communicates in every
    micro-batch lengthens its forward and backward; what it reduces and updates after its last one follows the whole
    schedule, on the slowest rank. DtkError: the model cannot be built, or the hardware lacks figures of the precision.
    """
    job = _Job(config, world_size, hardware)
    schedule, parts = job.schedule, job.parts
    wholes = [job.walk(part, job.count) for part in parts]
    per_micro_batch_s = [
        job.walk(part, 2)[0].end_s - job.walk(part, 1)[0].end_s if schedule.ranks > 1 else whole.end_s / job.count
        for part, (whole, _) in zip(parts, wholes, strict=True)
    ]
    tails_s = [walk.end_s - job.count * each for (walk, _), each in zip(wholes, per_micro_batch_s, strict=True)]

    forward_share = [part.forward_s / (part.forward_s + part.backward_s) for part in parts]

    def action_s(action: Action) -> float:
        share = forward_share[action.stage] if action.kind == "forward" else 1 - forward_share[action.stage]
        return per_micro_batch_s[action.stage] * (share / 2 if "gradient" in action.kind else share)

    message = job.price("send", "pp", job.message_bytes)
    alone_s = job.count * per_micro_batch_s[0]
    end_s = _timeline_s(schedule, action_s, message.seconds) if schedule.ranks > 1 else alone_s
    places = [schedule.stages_of(rank) for rank in range(schedule.ranks)]
    busiest = max(places, key=lambda place: sum(wholes[stage][0].compute_s for stage in place))
    step_s = end_s + max(sum(tails_s[stage] for stage in place) for place in places)
    whole = Walk(job.price, now_s=step_s)
    for stage in busiest:
        whole.add(wholes[stage][0])
        whole.add(job.inside_layers(parts[stage].blocks))
    if schedule.ranks > 1:
        sent = Transfer("send", "pp", 1, job.message_bytes, "point to point", message.seconds)
        whole.count(sent, job.count * messages(job.config, busiest[0]))
    bubble_s = max(0.0, step_s - sum(wholes[stage][0].end_s for stage in busiest)) if schedule.ranks > 1 else 0.0
    return _time(whole, sum(wholes[stage][1] for stage in busiest), bubble_s, job)


def _timeline_s(schedule: Pipeline, action_s: Callable[[Action], float], message_s: float) -> float:
    """Walk the schedule; in the steady state each round of as many micro-batches as ranks has equal length."""
    rounds, rest = divmod(schedule.micro_batches, schedule.ranks)
    if rounds <= _STEADY_ROUNDS or (rest and schedule.stages_per_rank > 1):
        return walk_pipeline(schedule, action_s, message_s).end_s
    few = (
        dataclasses.replace(schedule, micro_batches=n * schedule.ranks + rest)
        for n in (_STEADY_ROUNDS - 1, _STEADY_ROUNDS)
    )
    before_s, after_s = (walk_pipeline(each, action_s, message_s).end_s for each in few)
    return after_s + (rounds - _STEADY_ROUNDS) * (after_s - before_s)


def least_s(config: Config, world_size: int, hardware: Hardware) -> float:
    """Return a lower bound of the step time.

    It is the busiest rank's compute plus the first micro-batch's latency, or the traffic of a data-parallel group.
    """
    job = _Job(config, world_size, hardware)
    sent_s: dict[str, float] = defaultdict(float)
    for call, cost in job.priced(stage_states(job.config, job.mesh, job.mesh.pp - 1)):
        sent_s[call.group] += call.count * cost.seconds
    parts_s = [part.forward_s + part.backward_s for part in job.parts]
    places = map(job.schedule.stages_of, range(job.schedule.ranks))
    computed_s = (job.count * sum(parts_s[n] for n in place) + sum(parts_s[: place[0]]) for place in places)
    return max(*computed_s, *sent_s.values(), 0.0)


@dataclass(frozen=True, slots=True)
class _Part:
    blocks: range
    layout: Layout
    seconds: work.Seconds  # Parts of the embeddings and the head that the stage has.
    recomputed: tuple[bool, ...]  # Whether each block is recomputed.

    @property
    def forward_s(self) -> float:
        """Seconds of a micro-batch's forward."""
        return len(self.blocks) * self.seconds.block_forward + self.seconds.head_forward

    @property
    def backward_s(self) -> float:
        """Seconds of a micro-batch's backward."""
        times, recomputed = self.seconds, sum(self.recomputed)
        return len(self.blocks) * times.block_backward + recomputed * times.block_recompute + times.head_backward

    def block_backward(self, i: int) -> float:
        """Return the seconds of the i-th block's backward, including recomputation."""
        return self.seconds.block_backward + self.recomputed[i] * self.seconds.block_recompute


class _Job:
    def __init__(self, config: Config, world_size: int, hardware: Hardware) -> None:
        self.config, self.hardware = on_mesh(config, world_size), hardware
        self.job_mesh, self.mesh = config.mesh(world_size), states_mesh(self.config, world_size)
        self.price = _price(self.mesh, self.job_mesh, hardware)
        self.layout = layout(config)
        self.count = max(1, config.batch_plan(world_size).accumulation_steps)
        self.schedule = config.parallel.pipeline(self.count)
        self.message_bytes = message_bytes(config) if self.mesh.pp > 1 else 0
        self.parts = []
        self.walked: dict[tuple[object, ...], tuple[Walk, float]] = {}
        seconds = work.micro_batch_seconds(config, self.layout, hardware)
        every = config.train.activation_checkpoint_every
        alike: dict[tuple[bool, bool, int, int], tuple[Layout, work.Seconds]] = {}  # There may be hundreds of stages.
        for blocks in config.stage_blocks(len(self.layout.blocks)):
            dense = max(0, self.layout.dense - blocks.start)
            kind = blocks.start == 0, blocks.stop == len(self.layout.blocks), len(blocks), dense
            if kind not in alike:
                before, after = self.layout.before if kind[0] else (), self.layout.after if kind[1] else ()
                inside = self.layout.blocks[blocks.start : blocks.stop]
                part = dataclasses.replace(self.layout, before=before, blocks=inside, after=after)
                alike[kind] = part, self._stage_seconds(seconds, blocks)
            self.parts.append(_Part(blocks, *alike[kind], tuple(every > 0 and i % every == 0 for i in blocks)))

    def _stage_seconds(self, seconds: work.Seconds, blocks: range) -> work.Seconds:
        """Add the time in which layers wait for collectives: all of it, as each result is needed immediately."""
        if blocks.stop != len(self.layout.blocks):
            seconds = dataclasses.replace(seconds, head_forward=0.0, head_backward=0.0)
        if self.job_mesh.tp * self.job_mesh.cp * self.job_mesh.ep == 1:
            return seconds
        # Modules before the first block or after the last one communicate even without blocks.
        ends_s = sum(self.waits_s(range(end, end), 0) for end in (blocks.start, blocks.stop))
        block_s, recomputed_s = ((self.waits_s(blocks, every) - ends_s) / len(blocks) for every in (0, 1))
        return dataclasses.replace(
            seconds,
            block_forward=seconds.block_forward + block_s / 2,
            block_backward=seconds.block_backward + block_s / 2,
            block_recompute=seconds.block_recompute + recomputed_s - block_s,
            head_forward=seconds.head_forward + ends_s / 2,
            head_backward=seconds.head_backward + ends_s / 2,
        )

    def priced(self, calls: Iterable[Collective]) -> list[tuple[Collective, Cost]]:
        """Return the cost of each call."""
        return [(call, self.price(call.op, call.group, call.size_bytes / call.count)) for call in calls if call.count]

    def waits_s(self, blocks: range, every: int) -> float:
        """Return the exposed communication of these blocks per micro-batch in seconds; every `every`-th is recomputed.

        The ring exchange of keys and values overlaps attention: only the part longer than compute is exposed.
        """
        train = dataclasses.replace(self.config.train, activation_checkpoint_every=every)
        config = dataclasses.replace(self.config, train=train)
        priced = self.priced(inside(config, self.job_mesh, 1, [], blocks))
        seconds = {True: 0.0, False: 0.0}
        for call, cost in priced:
            seconds[call.op == "send"] += call.count * cost.seconds
        if not seconds[True]:
            return seconds[False]
        rounds = sum(3 + (every > 0 and i % every == 0) for i in blocks)  # Backward computes twice as much.
        hidden_s = rounds * work.attention_seconds(config, self.hardware) * (1 - 1 / self.job_mesh.cp)
        return seconds[False] + max(0.0, seconds[True] - hidden_s)

    def inside_layers(self, blocks: range) -> Walk:
        """Return the communication of a stage's layers in a step; its exposed part is in the compute seconds."""
        walk = Walk(self.price)
        for call, cost in self.priced(inside(self.config, self.job_mesh, 1, [], blocks)):
            each = Transfer(call.op, call.group, 1, call.size_bytes // call.count, cost.algorithm, cost.seconds)
            walk.count(each, self.count * call.count)
        walk.compute_s -= self.count * self.waits_s(blocks, self.config.train.activation_checkpoint_every)
        return walk

    def walk(self, part: _Part, rounds: int) -> tuple[Walk, float]:
        """Walk a step of one stage, cached for equal stages; also return the seconds of its update."""
        kind = id(part.layout), part.recomputed, self._clips(part), rounds  # Equal stages share a layout.
        if kind not in self.walked:
            walk = Walk(self.price, self.hardware.backend == "gloo")
            units = self.config.strategy.traits.gradients_in == "units"
            update_s = (self._walk_sharded if units else self._walk_replicated)(walk, part, rounds)
            self.walked[kind] = walk, update_s
        return self.walked[kind]

    def _clips(self, part: _Part) -> bool:
        """Whether clipping is counted with this stage: it sums over all stages of a rank."""
        return any(part is each for each in self.parts[: self.schedule.ranks])

    def _walk_replicated(self, walk: Walk, part: _Part, rounds: int) -> float:
        """Walk a strategy with replicated parameters; return the seconds of the update."""
        strategy, ranks = self.config.strategy, self.mesh.dp_size
        gradients, shapes = _gradients_s(part), part.layout.shapes
        communicates = strategy.traits.gradients_in == "buckets" and ranks > 1
        buckets = [Bucket(sum(gradients), ())]
        if communicates:
            reductions = strategy.reductions(shapes, ranks)
            buckets = [Bucket(sum(gradients[i] for i in each.members), each.calls) for each in reductions]
        walk.repeat(rounds - 1, lambda once: ddp_micro_batch(once, part.forward_s, buckets, last=False))
        ddp_micro_batch(walk, part.forward_s, buckets, last=communicates)
        deals = strategy.traits.deals_out_parameters
        owners = owned_elements(shapes, ranks) if deals else [sum(map(prod, shapes))]
        updating_s = self._update(walk, part, max(owners))
        if deals and communicates:
            # Each rank sends its updated parameters once all have updated; a rank without parameters sends an element.
            for owned in owners:
                walk.communicate("broadcast", "dp", 4 * max(1, owned))
        return updating_s

    def _walk_sharded(self, walk: Walk, part: _Part, rounds: int) -> float:
        """Walk strategies on fully_shard; return the seconds of the update."""
        sharded, once = _sharded(self.config, self.mesh, part), self.config.strategy.gathers_once
        if once and rounds > 1:
            fsdp_micro_batch(walk, sharded, last=False)
        middle = rounds - 1 - once
        walk.repeat(middle, lambda each: fsdp_micro_batch(each, sharded, last=False, gathers=not once))
        fsdp_micro_batch(walk, sharded, last=True, gathers=not once or rounds == 1)
        parts: list[tuple[Sequence[Shape], int]] = [(part.layout.shapes, self.mesh.dp_shard)]
        if experts := part.layout.experts:
            parts += [(experts, self.mesh.expert_shard)] * sum(i >= part.layout.dense for i in part.blocks)
        return self._update(walk, part, sum(shard_elements(shapes, n) for shapes, n in parts))

    def _update(self, walk: Walk, part: _Part, gradients: int) -> float:
        """Walk the end of the step: gradient sums over other dimensions, clipping, the update."""
        config, hardware = self.config, self.hardware
        if config.model.architecture != "custom":
            for call in sums_of_gradients(config, self.mesh, part.blocks):
                walk.compute(0.0, after_s=walk.communicate(call.op, call.group, call.size_bytes))
        norm_s, scale_s = work.clip_seconds(config, gradients, hardware)
        summed = config.strategy.summed(self.mesh) if self._clips(part) else ()
        groups = [name for name in summed if self.mesh.size(name) > 1]
        return update(walk, norm_s, scale_s, work.optimizer_seconds(config, gradients, hardware), groups)


def _gradients_s(part: _Part) -> list[float]:
    """Return the backward seconds per parameter, from last to first: a part's compute is divided by size."""
    model = part.layout
    # The output projection comes first, even if it is tied to the embedding, whose gradient is complete at the end.
    parts: list[tuple[float, tuple[Shape, ...]]] = [(0.0, model.before)]
    parts += [(part.block_backward(i), block) for i, block in enumerate(model.blocks)]
    parts.append((part.seconds.head_backward, model.after))
    done: list[float] = []
    carried_s = 0.0
    for part_s, shapes in reversed(parts):
        whole = sum(map(prod, shapes))
        if not whole:
            carried_s += part_s
            continue
        for shape in reversed(shapes):
            done.append(carried_s + part_s * prod(shape) / whole)
            carried_s = 0.0
    return done


def _sharded(config: Config, mesh: Mesh, part: _Part) -> Sharded:
    """Return the units of fully_shard with their compute, gathers and reductions."""
    strategy, precision, model = config.strategy, config.precision, part.layout
    compute = ITEM_BYTES["float32" if strategy.autocasts else precision.compute_dtype]
    reduce = ITEM_BYTES["float32"] if strategy.autocasts else reduced_item_bytes(precision)
    secondary, replicated = mesh.dp_secondary > 1, "dp_replicate" in strategy.grouped(mesh) and mesh.dp_replicate > 1

    def unit(times_s: tuple[float, float], shapes: Sequence[Shape], experts: bool = False) -> Unit:
        shards = mesh.expert_shard if experts else mesh.dp_shard
        gathered = wire_bytes(shapes, shards, compute, strategy.quantized_weights)
        regathered = wire_bytes(shapes, shards, compute, strategy.quantized_weights and not secondary)
        reduced = wire_bytes(shapes, shards, reduce, strategy.quantized_gradients)
        groups = "dp_shard", SECONDARY if secondary else "dp_shard", "dp_replicate" if replicated else ""
        if experts:
            groups = "expert_shard", "expert_shard", "expert_replicate"
        kept = shard_elements(shapes, shards) * reduce
        return Unit(*times_s, gathered, regathered, reduced, kept, *groups)

    size, layers = strategy.blocks_per_unit, len(model.blocks)
    root = [*model.before, *model.after, *(shape for block in model.blocks for shape in block if not size)]
    units = []
    for first in range(0, layers, step := size or max(1, layers)):
        numbers = range(first, min(first + step, layers))
        if model.experts:  # They compute with their block.
            units += [unit((0.0, 0.0), model.experts, True)] * sum(part.blocks[i] >= model.dense for i in numbers)
        if size:
            times_s = len(numbers) * part.seconds.block_forward, sum(map(part.block_backward, numbers))
            units.append(unit(times_s, [shape for i in numbers for shape in model.blocks[i]]))
    rest_s = part.forward_s - sum(each.forward_s for each in units)
    rest_back_s = part.backward_s - sum(each.backward_s for each in units)
    op, whole = "all_to_all" if strategy.quantized_gradients else "reduce_scatter", unit((rest_s, rest_back_s), root)
    return Sharded(tuple(units), whole, bool(strategy.reshard_after_forward), strategy.prefetch_depth, op)


def _price(states: Mesh, mesh: Mesh, hardware: Hardware) -> Price:
    """Return the function that prices a call over each group; equal calls are computed once."""
    links, local_size = (hardware.intra_node, hardware.inter_node), hardware.devices_per_node

    @functools.cache
    def placed(name: str) -> Group:
        size, stride = (each := mesh if name == "cp" else states).size(name), each.stride(name)
        return Group(size, min(size, max(1, local_size // stride)), *links)

    @functools.cache
    def pair(name: str) -> Group:
        ends = mesh.size(name) if name == "cp" else 2  # A ring is as fast as its slowest link.
        near = link(ends, mesh.stride(name), mesh.world_size, local_size) == "intra_node"
        return Group(2, 2 if near else 1, *links)

    @functools.cache
    def price(op: str, group: str, size_bytes: float) -> Cost:
        if op in ("send", "recv"):  # Both directions simultaneously.
            seconds = collective("broadcast", size_bytes, pair(group)).seconds if op == "send" else 0.0
            return Cost("point to point", seconds)
        # torch's gloo reduces the full buffer on every rank and keeps a part.
        whole = op == "reduce_scatter" and hardware.backend == "gloo"
        return collective("all_reduce" if whole else op, size_bytes, placed(group))

    return price


def _time(walk: Walk, updating_s: float, bubble_s: float, job: _Job) -> Time:
    config, hardware, step_s = job.config, job.hardware, walk.end_s
    tokens_per_s = config.train.global_batch_size * config.data.sequence_length / step_s
    dtype = config.precision.matmul_dtype
    peak = hardware.peak_flops.get(dtype)
    flops, ranks = job.layout.flops_per_token, job.mesh.world_size
    mfu, _ = model_flops_utilization(tokens_per_s, flops, ranks, peak, "no peak is known")
    return Time(
        compute_s=walk.compute_s,
        communication_s=walk.communication_s,
        exposed_s=step_s - walk.compute_s - bubble_s,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        mfu=mfu,
        scaling_efficiency=walk.compute_s / step_s,
        bubble_s=bubble_s,
        optimizer_s=updating_s,
        transfers=tuple(transfer for transfer in walk.transfers.values() if transfer.seconds),
        assumptions=_assumptions(config, hardware),
        matmul_dtype=dtype,
        peak_flops=peak,
    )


def _assumptions(config: Config, hardware: Hardware) -> tuple[str, ...]:
    strategy, on_cpu = config.strategy, hardware.backend == "gloo"
    assumed = sorted(key for key, source in hardware.sources.items() if source.startswith("assumption"))
    quantized = ("quantized_weights", "quantized_gradients")
    hook = getattr(strategy, "communication_hook", "none")
    rules = {
        "host_work": on_cpu,
        "hidden": not on_cpu,
        "hardware": assumed,
        "offload": strategy.offload != "none",
        "quantized": any(getattr(strategy, key, False) for key in quantized),
        "hook": hook in ("int8", "topk", "powersgd"),
        "one_device": strategy.traits.least_cuda_devices > 1,
        "schedule": strategy.traits.gradients_in is None and strategy.traits.collectives,
        "custom": config.model.architecture == "custom",
        "compile": config.train.compile,
    }
    where = "host" if strategy.offload_to == "host" else "file"
    return notes(__file__, rules, c=config, hardware=hardware.name, assumed=assumed, hook=hook, where=where)
