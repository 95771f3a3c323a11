"""One rank by formulas: what each of its stages holds and sends; each micro-batch in flight has its own tape."""

import dataclasses
from collections import deque
from math import prod

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import Config
from dtk.dimensions import inside
from dtk.parallel.pipeline import OUTSTANDING, RECEIVES, SCHEDULES, SENDS, Order, Pipeline
from dtk.plan.formulas.flat_parts import FlatParts
from dtk.plan.formulas.holding import Holding, Replicated
from dtk.plan.formulas.prediction import Memory
from dtk.plan.formulas.shape import ModelShape, cut, model_shape, partial
from dtk.plan.formulas.sharding import Sharded, shard_units
from dtk.plan.formulas.tape import Buffer, Ledger, Value
from dtk.plan.formulas.walk import Step, Stretch, in_units, micro_batches, stream_item_bytes, stretch
from dtk.sharding.declared import Collective, shard_elements

CUDA_BLOCK_BYTES = 512  # Allocation granularity of CUDA's caching allocator.


def settled_holding(config: Config, shape: ModelShape, mesh: Mesh, ledger: Ledger, walked: int) -> Holding:
    """Return the model states of the strategy: those of all of `shape`, with units for the walked blocks only."""
    place = config, shape, mesh, ledger, config.launcher.device == "cuda"
    holding: Holding = (FlatParts if config.strategy.traits.flattened else Replicated)(*place)
    if in_units(config):
        units = shard_units(shape, walked, config.strategy.blocks_per_unit)
        holding = Sharded(*place, shards=mesh.dp_shard, units=units)
    holding.settle()
    return holding


def stage_shape(shape: ModelShape, blocks: range) -> ModelShape:
    """Return the stage with these blocks; a tied embedding is on both ends, on the last one after the blocks."""
    first, last = blocks.start == 0, blocks.stop == shape.layers
    after = dict(shape.after if last else ())
    before = dict(shape.before if first else ())
    if last and not first and "head.weight" not in after:
        after = {"token_embedding.weight": dict(shape.before)["token_embedding.weight"], **after}
    dense = max(0, min(blocks.stop, shape.dense) - blocks.start)
    ends = {"before": tuple(before.items()), "after": tuple(after.items())}
    return dataclasses.replace(shape, layers=len(blocks), dense=dense, **ends)  # type: ignore[arg-type]


def stage_part(config: Config, blocks: range) -> ModelShape:
    """Return this rank's part of the stage with these blocks."""
    whole = model_shape(config.model, config.parallel.ep)
    return cut(stage_shape(whole, blocks), config.parallel.tp)


def on_mesh(config: Config, world_size: int) -> Config:
    """Return the configuration with the strategy section for its mesh; see `StrategyConfig.on`."""
    return dataclasses.replace(config, strategy=config.strategy.on(config.mesh(world_size)))


def states_mesh(config: Config, world_size: int) -> Mesh:
    """Return the mesh over which a job's ranks distribute states."""
    mesh: Mesh = config.strategy.states_mesh(config.mesh(world_size))
    return mesh


def message_bytes(config: Config) -> int:
    """Return the bytes of one micro-batch's residual stream or its gradient, which neighbouring stages exchange."""
    parts = config.parallel.cp * (config.parallel.tp if config.parallel.sequence_parallel else 1)
    elements: int = config.train.micro_batch_size * config.data.sequence_length // parts * config.model.width
    return elements * stream_item_bytes(config)


def rank_stages(config: Config, place: int) -> dict[int, range]:
    """Return the blocks of each stage on the rank at this place of its pipeline."""
    cuts = config.stage_blocks(config.model.layers)
    return {stage: cuts[stage] for stage in config.parallel.pipeline(1).stages_of(place)}


def messages(config: Config, place: int) -> int:
    """Return how many messages a rank sends (and receives) per micro-batch: one per boundary with another rank."""
    pipeline = config.parallel.pipeline(1)
    beside = [other for stage in pipeline.stages_of(place) for other in (stage - 1, stage + 1)]
    return sum(0 <= other < pipeline.stages and pipeline.rank_of(other) != place for other in beside)


def rank_memory(config: Config, world_size: int, place: int = 0, whole: bool = False) -> Memory:
    """Return the memory of the rank at this place of its pipeline over one step; without a pipeline `place` is 0.

    Equal blocks and micro-batches are walked once, as searches call this often; `whole` walks all, to the same result.
    DtkError if `model.architecture=custom`.
    """
    config = on_mesh(config, world_size)
    count = config.batch_plan(world_size).accumulation_steps
    pipeline = config.parallel.pipeline(count) if config.parallel.pp > 1 else Pipeline("1f1b", 1, count)
    # The second half of a split backward frees what the first keeps, so no block represents others.
    whole = whole or SCHEDULES[pipeline.schedule].splits
    # At the end of any block a bucket may be full.
    fills = config.strategy.traits.flattened or getattr(config.strategy, "communication_hook", "none") != "none"
    walked = dataclasses.replace(pipeline, micro_batches=count if whole else micro_batches(pipeline))
    mesh = states_mesh(config, world_size)
    rank = _Rank(config, mesh, rank_stages(config, place), whole or fills, walked.micro_batches)
    # Token ids and targets, int64, of all micro-batches: every rank of a pipeline holds them.
    samples = config.train.micro_batch_size * count
    rank.ledger.allocate("activations", 2 * 8 * config.data.sequence_length // config.parallel.cp * samples)
    rank.run(walked.orders()[place])
    holdings = rank.holdings.values()
    number = place * mesh.stride("pp") + max(holding.rank for holding in holdings) * mesh.stride("dp")
    kept_elsewhere = ((each.host_bytes, each.file_bytes, each.paged_bytes) for each in holdings)
    return rank.ledger.memory(number, *map(sum, zip(*kept_elsewhere, strict=True)))


class _Rank:
    """One step of a rank: its stages, what they hold, and messages in flight between them."""

    def __init__(self, config: Config, mesh: Mesh, stages: dict[int, range], whole: bool, count: int) -> None:
        self.config, self.stages = config, stages
        self.ledger = ledger = Ledger(CUDA_BLOCK_BYTES if config.launcher.device == "cuda" else 1)
        self.layers: int = config.model.layers
        unit = config.strategy.blocks_per_unit if in_units(config) else 0
        ahead = max(1, config.strategy.prefetch_depth) if in_units(config) else 0
        every = config.train.activation_checkpoint_every
        self.walks: dict[int, Stretch] = {}
        self.holdings: dict[int, Holding] = {}
        for number, blocks in stages.items():
            part = stage_part(config, blocks)
            walk = stretch(len(blocks), unit, every, ahead)
            if whole or part.dense:  # Leading dense blocks differ from the others.
                walk = Stretch(len(blocks), 1)
            self.walks[number] = walk
            self.holdings[number] = settled_holding(config, part, mesh, ledger, walk.walked)
        self.remaining = dict.fromkeys(stages, count)  # Number of remaining backward passes.
        self.size_bytes = message_bytes(config)
        self.flying: dict[tuple[int, int], tuple[Step, Value]] = {}
        self.results: dict[tuple[bool, int, int], Buffer] = {}
        """(whether forward, stage that needs it, micro-batch) -> residual stream or its gradient."""
        self.sent: deque[Buffer] = deque()  # Messages in flight.

    def run(self, order: Order) -> None:
        """Walk the schedule and the update."""
        for kind, number, i in order:
            if kind in RECEIVES:
                buffer = self.ledger.allocate("activations", self.size_bytes)
                self.results[kind == "receive_forward", number, i] = buffer
            elif kind in SENDS:
                while len(self.sent) >= OUTSTANDING:
                    self.sent.popleft().drop()
                forward = kind == "send_forward"
                self.sent.append(self.results.pop((forward, number + 1 if forward else number - 1, i)))
            elif kind == "forward":
                self.ledger.enter("forward")
                blocks = self.stages[number]
                step = Step(self.holdings[number], self.walks[number], blocks.start, blocks.stop == self.layers)
                result = step.forward(self.results.pop((True, number, i), None))
                self.flying[number, i] = step, result
                if not step.last:
                    self.results[True, number + 1, i] = result.buffer.hold()
            elif kind != "input_gradient" or number:  # The first stage has no input: all is allocated with the weights.
                self.ledger.enter("backward")
                step, result = self.flying[number, i]
                if kind != "input_gradient":
                    self.remaining[number] -= 1
                    self.holdings[number].last = not self.remaining[number]
                    del self.flying[number, i]
                if kind == "weight_gradient" and number:
                    step.weights()
                    continue
                gradient = step.backward(result, self.results.pop((False, number, i), None), kind == "input_gradient")
                if gradient is not None:
                    self.results[False, number - 1, i] = gradient
        for message in self.sent:
            message.drop()
        if self.config.train.clip_norm is not None or self.config.precision.initial_loss_scale is not None:
            self.ledger.enter("clip")
        self.ledger.enter("optimizer")
        for holding in self.holdings.values():
            holding.update()


def least_bytes(config: Config, world_size: int) -> int:
    """Return a lower bound of the first rank's memory: states, and activations in flight.

    It is cheap, so that a search can skip layouts that are certainly too large.
    """
    config = on_mesh(config, world_size)
    ledger = Ledger(CUDA_BLOCK_BYTES if config.launcher.device == "cuda" else 1)
    stages = rank_stages(config, 0)
    parallel = config.parallel
    count = config.batch_plan(world_size).accumulation_steps
    pipeline = parallel.pipeline(count)
    peak = dataclasses.replace(pipeline, micro_batches=micro_batches(pipeline)).in_flight(0) if parallel.pp > 1 else 1
    for blocks in stages.values():
        part = stage_part(config, blocks)
        holding = settled_holding(config, part, states_mesh(config, world_size), ledger, part.dense + 1)
        if isinstance(holding, Sharded):
            ledger.change("gradients", holding.whole_bytes(accumulated=count > peak))
    step = Step(holding, Stretch(1, 1))
    states = ledger.total_bytes
    step.model.tape.recording = not config.train.activation_checkpoint_every
    stream = Value(ledger.allocate("activations", 0), step.model.stream_size)  # No part of a block, so not counted.
    step.model.block(stream, f"blocks.{part.dense}.")
    step.model.end_autocast()
    return states + peak * min(map(len, stages.values())) * (ledger.total_bytes - states)


def stage_declarations(config: Config, world_size: int, place: int) -> list[Collective]:
    """Return the collectives per step of the rank at this place of its pipeline."""
    config = on_mesh(config, world_size)
    mesh, count = config.mesh(world_size), config.batch_plan(world_size).accumulation_steps
    sent = count * messages(config, place)
    declared = [Collective(op, "pp", sent, sent * message_bytes(config)) for op in ("send", "recv") if sent]
    states = states_mesh(config, world_size)
    declared += stage_states(config, states, place)
    for blocks in rank_stages(config, place).values():
        declared += [*inside(config, mesh, count, [], blocks), *sums_of_gradients(config, states, blocks)]
    return [*declared, *(config.strategy.declare_clip(states) if config.train.clip_norm is not None else ())]


def stage_states(config: Config, mesh: Mesh, place: int) -> list[Collective]:
    """Return the strategy's collectives for a rank's stages, given results of `on_mesh` and `states_mesh`."""
    parts = (stage_part(config, blocks) for blocks in rank_stages(config, place).values())
    count = config.batch_plan(mesh.world_size).accumulation_steps
    return [call for part in parts for call in config.strategy.declare(part.declared, mesh, config.precision, count)]


def sums_of_gradients(config: Config, mesh: Mesh, blocks: range) -> list[Collective]:
    """Return the all_reduces of a stage's gradients after its last backward outside data parallelism.

    They sum gradients of a `tp` rank's part of the sequence and, at both ends of a pipeline, of the tied embedding.
    """
    shape, part = model_shape(config.model), stage_part(config, blocks)
    sums = []
    if mesh.tp > 1 and config.parallel.sequence_parallel:
        elements = sum(map(prod, partial(part, mesh.dp_shard)))
        sums.append(Collective("all_reduce", "tp", 1, 4 * elements))
    tied = "head.weight" not in dict(shape.after) and config.model.architecture != "encoder"
    if tied and mesh.pp > 1 and (blocks.start == 0 or blocks.stop == shape.layers):
        table = dict(part.root)["token_embedding.weight"]
        sums.append(Collective("all_reduce", "pp", 1, 4 * shard_elements([table], mesh.dp_shard)))
    return sums
