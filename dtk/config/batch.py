"""The batch of a job: the micro-batch that `train.micro_batch_size=0` leaves open, and what fits instead."""

import dataclasses

from diagnostics.contract.formatting import counted
from dtk.config.compose import Composed
from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.errors import DtkError
from dtk.parallel.batch_plan import BatchPlan
from dtk.parallel.mesh import divisors


def check_batch(config: Config, world_size: int) -> None:
    """Refuse a global batch that does not divide into whole micro-batches of all ranks.

    Raises:
        DtkError: with the nearest sizes that do.
    """
    plan = config.batch_plan(world_size)
    if plan.is_whole:
        _check_microbatches(config, plan)
        return
    ways = []
    if config.resume is None:
        ways.append(f"train.global_batch_size={_listed(plan.nearest_global_batch_sizes())}")
    if micro := plan.nearest_micro_batch_sizes():
        ways.append(f"train.micro_batch_size={_listed(micro)}")
    total, ranks = plan.global_batch_size, counted(plan.dp_size, "rank")
    what = "is less than" if total < plan.dp_size * plan.micro_batch_size else "does not divide into"
    raise DtkError(
        f"train.global_batch_size={total} {what} {ranks} x train.micro_batch_size={plan.micro_batch_size}",
        fix=f"use {', or '.join(ways)}" if ways else _fewer_ranks(plan),
    )


def settle(composed: Composed, world_size: int) -> Composed:
    """Choose the largest micro-batch, up to a limit, that divides the global batch over the ranks.

    Raises:
        DtkError: the global batch does not divide over the ranks.
    """
    train = composed.config.train
    if train.micro_batch_size:
        return composed
    plan, wanted = composed.config.batch_plan(world_size), composed.config.parallel.microbatches
    if wanted is not None and plan.global_batch_size % (plan.dp_size * wanted) == 0:
        chosen: int | None = plan.samples_per_rank // wanted
    else:  # A pipeline wants as many micro-batches as it has stages, at least.
        chosen = plan.chosen_micro_batch_size(composed.config.parallel.pp)
    if chosen is None:
        raise DtkError(
            f"train.global_batch_size={plan.global_batch_size} does not divide over {counted(plan.dp_size, 'rank')}",
            fix=_fewer_ranks(plan)
            if composed.config.resume
            else f"use train.global_batch_size={_listed(plan.nearest_global_batch_sizes())}",
        )
    config = dataclasses.replace(composed.config, train=dataclasses.replace(train, micro_batch_size=chosen))
    return dataclasses.replace(composed, config=config, plain=to_plain(config))


def _check_microbatches(config: Config, plan: BatchPlan) -> None:
    """Refuse `parallel.microbatches` that the batch does not have."""
    wanted = config.parallel.microbatches
    if wanted is None or wanted == plan.accumulation_steps:
        return
    share = plan.samples_per_rank
    near = sorted(divisors(share), key=lambda count: (abs(count - wanted), count))[0]
    if share % wanted:
        raise DtkError(
            f"parallel.microbatches={wanted} does not divide the {counted(share, 'sample')} of each data-parallel rank",
            f"train.global_batch_size={plan.global_batch_size} on {counted(plan.dp_size, 'data-parallel rank')}",
            f"use parallel.microbatches={near}, or train.global_batch_size={plan.dp_size * wanted}",
        )
    raise DtkError(
        f"parallel.microbatches={wanted}, but train.micro_batch_size={plan.micro_batch_size} makes "
        f"{plan.accumulation_steps}",
        fix=f"use train.micro_batch_size={share // wanted}, or parallel.microbatches=null",
    )


def _fewer_ranks(plan: BatchPlan) -> str:
    """Return the advice for a resumed run, whose global batch cannot change: use fewer ranks, which always fits."""
    ranks = plan.fewer_ranks()
    again = " train.micro_batch_size=0" if plan.global_batch_size % (ranks * max(1, plan.micro_batch_size)) else ""
    return f"the global batch cannot change in a resumed run, so use fewer ranks: launcher.nproc={ranks}{again}"


def _listed(numbers: list[int]) -> str:
    *rest, last = map(str, numbers)
    return f"{', '.join(rest)} or {last}" if rest else last
