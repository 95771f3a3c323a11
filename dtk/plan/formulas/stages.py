"""A pipeline by formulas: what each stage is, holds and sends. The order of a step is that of its schedule.

Every micro-batch in flight has a tape of its own; all write to one ledger, whose peak is that of the rank.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator

from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.parallel.pipeline import OUTSTANDING, RECEIVES, SCHEDULES, SENDS, stage_blocks
from dtk.plan.formulas.holding import Holding
from dtk.plan.formulas.ledger import Buffer, Ledger
from dtk.plan.formulas.replication import Replicated
from dtk.plan.formulas.shape import ModelShape, model_shape
from dtk.plan.formulas.sharding import Sharded, shard_units
from dtk.plan.formulas.stretch import Stretch
from dtk.plan.formulas.tape import Value
from dtk.plan.formulas.walk import Step, allocate_batches, enter_update, stream_item_bytes
from dtk.plan.prediction import Memory
from dtk.strategies.declared import Collective, padded_elements

CUDA_BLOCK_BYTES = 512
"""What CUDA's caching allocator rounds to."""


def new_ledger(config: Config) -> Ledger:
    """Return the empty memory of a rank of this job."""
    return Ledger(CUDA_BLOCK_BYTES if config.launcher.device == "cuda" else 1)


def settled_holding(config: Config, shape: ModelShape, world_size: int, ledger: Ledger, walked: int) -> Holding:
    """Return the model states of the strategy: those of all of `shape`, with units for the walked blocks only."""
    place = config, shape, world_size, ledger, config.launcher.device == "cuda"
    holding: Holding = Replicated(*place)
    if config.strategy.traits.shards_parameters:
        units = shard_units(shape.block, walked, config.strategy.blocks_per_unit)
        holding = Sharded(*place, shards=config.mesh(world_size).dp_shard, units=units)
    holding.settle()
    return holding


def stage_shape(shape: ModelShape, blocks: range) -> ModelShape:
    """Return the stage with these blocks; a tied embedding is on both ends, on the last one after the blocks."""
    first, last = blocks.start == 0, blocks.stop == shape.layers
    after = dict(shape.after if last else ())
    before = dict(shape.before if first else ())
    if last and not first and "head.weight" not in after:
        after = {"token_embedding.weight": dict(shape.before)["token_embedding.weight"], **after}
    return dataclasses.replace(shape, layers=len(blocks), before=tuple(before.items()), after=tuple(after.items()))


def message_bytes(config: Config) -> int:
    """Bytes of the residual stream of one micro-batch, or of its gradient: what neighbouring stages send each other."""
    elements: int = config.train.micro_batch_size * config.data.sequence_length * config.model.width
    return elements * stream_item_bytes(config)


def rank_stages(config: Config, place: int) -> dict[int, range]:
    """Return the blocks of each stage on the rank at this place of its pipeline."""
    stages = config.parallel.pp * config.parallel.stages_per_rank
    cuts = stage_blocks(config.model.layers, stages)
    return {stage: cuts[stage] for stage in range(place, stages, config.parallel.pp)}


def stage_memory(config: Config, world_size: int, place: int) -> Memory:
    """Walk one step of the rank at this place of its pipeline.

    Raises:
        DtkError: `model.architecture=custom`, or a schedule that splits backward.
    """
    schedule = config.parallel.schedule
    if SCHEDULES[schedule].splits:
        raise DtkError(
            f"the closed form does not know parallel.schedule={schedule}",
            "what is kept between the two halves of a backward is not known",
            "plan with parallel.schedule=1f1b, which holds less",
        )
    shape, ledger = model_shape(config.model), new_ledger(config)
    count = config.batch_plan(world_size).accumulation_steps
    stages = rank_stages(config, place)
    holdings = {
        number: settled_holding(config, stage_shape(shape, blocks), world_size, ledger, len(blocks))
        for number, blocks in stages.items()
    }
    batches = allocate_batches(config, ledger, count)
    size_bytes = message_bytes(config)
    flying: dict[tuple[int, int], tuple[Step, Value]] = {}
    results: dict[tuple[bool, int, int], Buffer] = {}
    """(whether forward, stage that needs it, micro-batch) -> residual stream or its gradient."""
    sent: deque[Buffer] = deque()
    """Messages under way."""
    done = dict.fromkeys(stages, 0)
    for action in config.parallel.pipeline(count).orders()[place]:
        kind, number, i = action
        if kind in RECEIVES:
            results[kind == "receive_forward", number, i] = ledger.allocate("activations", size_bytes)
        elif kind in SENDS:
            while len(sent) >= OUTSTANDING:
                sent.popleft().drop()
            forward = kind == "send_forward"
            sent.append(results.pop((forward, number + 1 if forward else number - 1, i)))
        elif kind == "forward":
            ledger.enter("forward")
            blocks = stages[number]
            ends = blocks.start == 0, blocks.stop == shape.layers
            step = Step(holdings[number], Stretch(len(blocks), 1), blocks.start, *ends)
            flying[number, i] = step, step.forward(results.pop((True, number, i), None))
            output = flying[number, i][1].buffer
            if not step.last and output is not None:
                results[True, number + 1, i] = output.hold()
        else:
            ledger.enter("backward")
            done[number] += 1
            holdings[number].last = done[number] == count
            step, result = flying.pop((number, i))
            gradient = step.backward(result, results.pop((False, number, i), None))
            if gradient is not None:
                results[False, number - 1, i] = gradient
    for message in sent:
        message.drop()
    enter_update(config, ledger)
    for holding in holdings.values():
        holding.update()
    batches.drop()
    host_bytes = sum(holding.host_bytes for holding in holdings.values())
    return ledger.memory(config.mesh(world_size).groups("pp")[0][place], host_bytes)


def peaks(config: Config, world_size: int) -> Iterator[Memory]:
    """Yield the memory of a rank of each stage that differs from the others: both ends and their neighbours."""
    ranks = config.parallel.pp
    for place in sorted({0, 1, ranks - 2, ranks - 1} & {*range(ranks)}):
        yield stage_memory(config, world_size, place)


def stage_declarations(config: Config, world_size: int, place: int) -> list[Collective]:
    """Return what the rank at this place of its pipeline issues per step."""
    shape, mesh = model_shape(config.model), config.mesh(world_size)
    strategy, train = config.strategy.on(mesh), config.train
    count = config.batch_plan(world_size).accumulation_steps
    size_bytes = message_bytes(config)
    order = config.parallel.pipeline(count).orders()[place]
    declared = []
    for op, kinds in (("send", SENDS), ("recv", RECEIVES)):
        messages = sum(action.kind in kinds for action in order)
        declared += [Collective(op, "pp", messages, messages * size_bytes)] if messages else []
    for blocks in rank_stages(config, place).values():
        part = stage_shape(shape, blocks)
        declared += strategy.declare(part.declared, mesh, config.precision, count)
    if "head.weight" not in dict(shape.after) and config.model.architecture != "encoder" and place in (0, mesh.pp - 1):
        table = dict(shape.before)["token_embedding.weight"]
        declared.append(Collective("all_reduce", "pp", 1, 4 * padded_elements([table], mesh.dp_shard) // mesh.dp_shard))
    return [*declared, *(strategy.declare_clip(mesh) if train.clip_norm is not None else ())]
