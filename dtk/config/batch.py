"""The batch of a job: chooses the micro-batch if `train.micro_batch_size=0`, and suggests valid sizes."""

from dataclasses import replace

from diagnostics.contract.formatting import joined
from diagnostics.contract.mesh import divisors
from dtk.config.compose import Composed
from dtk.config.limits import check_numbers
from dtk.config.schema import Config
from dtk.errors import Errors
from dtk.parallel.batch_plan import BatchPlan

_errors = Errors(__file__)


def check_batch(config: Config, world_size: int) -> None:
    """Reject a global batch that is not whole micro-batches on all ranks; DtkError with the nearest valid sizes."""
    plan = config.batch_plan(world_size)
    microbatches = config.parallel.microbatches
    if plan.is_whole:
        if microbatches in (None, plan.accumulation_steps):
            return
        share = plan.samples_per_rank
        near = min(divisors(share), key=lambda count: (abs(count - microbatches), count))
        whole = max(1, round(share / microbatches)) * plan.dp_size * microbatches
        row = "microbatches" if share % microbatches else "makes"
        raise _errors(row, plan=plan, wanted=microbatches, near=near, whole=whole, micro=share // microbatches)
    ways = []
    if config.resume is None:
        ways.append(f"train.global_batch_size={joined(plan.nearest_global_batch_sizes(), 'or')}")
    if micro := plan.nearest_micro_batch_sizes():
        ways.append(f"train.micro_batch_size={joined(micro, 'or')}")
    is_less = plan.global_batch_size < plan.dp_size * plan.micro_batch_size
    fix = f"use {', or '.join(ways)}" if ways else _fewer_ranks(plan)
    raise _errors("batch", plan=plan, relation="is less than" if is_less else "cannot be split into", fix=fix)


def fill_degrees(composed: Composed, world_size: int) -> Composed:
    """Replace a degree of -1 (tp, pp, cp, ep) by its ranks; DtkError if several are -1, or another does not fit."""
    config = composed.config
    filled = config.parallel.filled(config.strategy, world_size)
    if filled is config.parallel:
        return composed
    return replace(composed, config=replace(config, parallel=filled))


def settle(composed: Composed, world_size: int) -> Composed:
    """Choose the largest micro-batch, up to a limit, that divides the global batch over the ranks; DtkError if a number
    is out of range, or the global batch cannot be split over the ranks.
    """
    train, microbatches = composed.config.train, composed.config.parallel.microbatches
    if train.micro_batch_size:
        return composed
    numbers = {"parallel": {"microbatches": microbatches}, "train": {"global_batch_size": train.global_batch_size}}
    check_numbers(numbers)
    plan = composed.config.batch_plan(world_size)
    chosen = None if microbatches is None else plan.micro_batch_size_of(microbatches)
    if chosen is None:  # A pipeline should have at least as many micro-batches as stages.
        chosen = plan.chosen_micro_batch_size(composed.config.parallel.pp)
    if chosen is None:
        nearest = f"use train.global_batch_size={joined(plan.nearest_global_batch_sizes(), 'or')}"
        raise _errors("ranks", plan=plan, fix=_fewer_ranks(plan) if composed.config.resume else nearest)
    return composed.with_train(micro_batch_size=chosen)


def _fewer_ranks(plan: BatchPlan) -> str:
    """Return advice for a resumed run, whose global batch cannot change: use fewer ranks, which is always possible."""
    ranks = plan.fewer_ranks()
    again = "" if replace(plan, dp_size=ranks).is_whole else " train.micro_batch_size=0"
    return f"the global batch cannot change in a resumed run, so use fewer ranks: launcher.nproc={ranks}{again}"
