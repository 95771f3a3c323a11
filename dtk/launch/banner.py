"""The first and the last lines of a run: what was chosen and why, how it ended, what to type next."""

import json

from diagnostics.artifacts import RunPaths, read_status
from dtk.config.schema import Config
from dtk.launch.console import Console, typed
from dtk.launch.local import Outcome
from dtk.launch.placement import Placement
from dtk.strategies.catalogue import CATALOGUE


def banner(
    console: Console, config: Config, paths: RunPaths, placement: Placement, attempt: int, world_size: int
) -> None:
    """What was detected and chosen, and why."""
    train = config.train
    accumulation = train.global_batch_size // (train.micro_batch_size * world_size)
    again = f" (attempt {attempt})" if attempt else ""
    console.line(console.strong(f"dtk {config.model.name} under {config.strategy.name}{again}", 36))
    console.line(f"  strategy  {CATALOGUE[config.strategy.name].summary}")
    console.line(
        f"  ranks     {world_size} on {placement.device} over {placement.backend}, "
        f"{placement.threads} CPU thread{'s' * (placement.threads != 1)} each"
        + "".join(f"; {reason}" for reason in placement.reasons)
    )
    console.line(
        f"  batch     {train.global_batch_size} samples = {world_size} ranks x {train.micro_batch_size} "
        f"x {accumulation} accumulated, {config.data.sequence_length} tokens each; {train.steps} steps"
    )
    console.line(f"  numbers   {config.precision.name}; record={config.record.level}; tracker={config.tracker.name}")
    console.line(f"  run       {typed(paths.root)}")


def farewell(console: Console, paths: RunPaths, outcome: Outcome) -> None:
    """One line on how it ended, one with the next command."""
    folder = typed(paths.root)
    if outcome.exit_code == 2:
        return
    if outcome.state == "finished":
        console.line(console.strong(f"finished{_figures(paths)}", 32))
        console.line(f"next: dtk show {folder}")
    elif outcome.state == "preempted":
        status = read_status(paths.status)
        console.line(console.strong(f"stopped at step {status.step}: {status.reason}", 33))
        console.line(f"next: python -m dtk.run resume={folder}")
    else:
        console.line(f"next: dtk show {folder}")


def _figures(paths: RunPaths) -> str:
    """Loss, speed and peak memory from the summary, if one was written."""
    try:
        figures = json.loads(paths.summary.read_text(encoding="utf-8"))["figures"]
        memory_gib = figures["peak_memory_bytes"] / 2**30
        return (
            f": loss {figures['loss']:.4f}, {figures['tokens_per_s']:,.0f} tokens/s, peak {memory_gib:.2f} GiB a rank"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""
