"""The layouts whose loss curves are held against that of one process: by a test, and by benchmarks/layout_parity.py."""

from pathlib import Path
from typing import Any

from dtk.config.strict import from_plain
from dtk.parallel.context import Context
from dtk.plan.job import planned_job
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import train

STEPS, HALF = 20, 10
PP, ZB = "parallel.pp=2", "parallel.schedule=zero_bubble"
TWICE = "parallel.stages_per_rank=2"
LOOPED = ("parallel.schedule=interleaved_1f1b", TWICE)
ULYSSES = ("parallel.cp=2", "parallel.context=ulysses")
HSDP = ("strategy=hsdp", "strategy.dp_replicate=2")
LAYOUTS: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        "ddp": ("strategy=ddp",),
        "zero1": ("strategy=zero1",),
        "zero2": ("strategy=zero2",),
        "fsdp": ("strategy=fsdp",),
        "ddp, tp 2": ("strategy=tp",),
        "ddp, tp 2, whole sequence": ("strategy=tp", "parallel.sequence_parallel=false"),
        "fsdp, tp 2": ("strategy=fsdp", "parallel.tp=2"),
        "ddp, pp 2, 1f1b": ("strategy=ddp", PP),
        "fsdp, pp 2, gpipe": ("strategy=fsdp", PP, "parallel.schedule=gpipe"),
        "ddp, pp 2, interleaved": ("strategy=ddp", PP, *LOOPED),
        "fsdp, pp 2, looped_bfs": ("strategy=fsdp", PP, "parallel.schedule=looped_bfs", TWICE),
        "ddp, pp 2, zero_bubble": ("strategy=ddp", PP, ZB),
        "zero1, pp 2, zero_bubble of 4 stages": ("strategy=zero1", PP, ZB, TWICE),
        "ddp, ring 2": ("strategy=ddp", "parallel.cp=2"),
        "zero1, ulysses 2": ("strategy=zero1", *ULYSSES),
        "fsdp, ulysses 2": ("strategy=ulysses",),
    },
    4: {
        "hsdp 2 x 2": HSDP,
        "fsdp, dp 2 x tp 2": ("strategy=fsdp", "parallel.tp=2"),
        "zero1, dp 2 x tp 2": ("strategy=zero1", "parallel.tp=2"),
        "hsdp 2 x 1 x tp 2": (*HSDP, "parallel.tp=2"),
        "ddp, tp 4": ("strategy=tp", "parallel.tp=4"),
        "fsdp, ring 4": ("strategy=ring", "parallel.cp=4"),
        "fsdp, dp 2 x ulysses 2": ("strategy=ulysses",),
        "fsdp, ring 2 x tp 2": ("strategy=ring", "parallel.tp=2"),
        "ddp, pp 2 x ring 2": ("strategy=ddp", PP, "parallel.cp=2"),
        "ddp, pp 4": ("strategy=ddp", "parallel.pp=4"),
        "fsdp, pp 2 x dp 2, interleaved": ("strategy=fsdp", PP, *LOOPED),
        "zero1, pp 2 x tp 2": ("strategy=3d",),
        "fsdp, dp 2 x tp 2, dp innermost": ("strategy=fsdp", "parallel.tp=2", "parallel.placement=dp"),
        "zero1, pp 2 x tp 2, pp innermost": ("strategy=3d", "parallel.placement=pp"),
    },
    8: {
        "zero1, pp 2 x dp 2 x tp 2": ("strategy=3d",),
        "fsdp, pp 2 x dp 2 x tp 2": ("strategy=fsdp", PP, "parallel.tp=2"),
        "hsdp 2 x 2 x tp 2": (*HSDP, "parallel.tp=2"),
        "fsdp, dp 2 x ring 2 x tp 2": ("strategy=ring", "parallel.tp=2"),
        "ddp, pp 2 x ulysses 2 x tp 2": ("strategy=ddp", PP, *ULYSSES, "parallel.tp=2"),
    },
}
"""Ranks -> name -> overrides. Of gpt2_tiny."""
EXPERTS: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        "ddp": ("strategy=ddp",),
        "ddp, ep 2": ("strategy=ddp", "parallel.ep=2"),
        "fsdp, ep 2": ("strategy=moe",),
        "ddp, tp 2, ep 2": ("strategy=tp", "parallel.ep=2"),
        "fsdp, ring 2": ("strategy=ring",),
        "ddp, pp 2, 1f1b": ("strategy=ddp", PP),
        "ddp, pp 2, zero_bubble": ("strategy=ddp", PP, ZB),
        "ddp, pp 2, zbv": ("strategy=ddp", PP, "parallel.schedule=zbv", TWICE),
    },
    4: {
        "fsdp, dp 4, ep 2": ("strategy=moe",),
        "hsdp 2 x 2, ep 2": (*HSDP, "parallel.ep=2"),
        "zero2, ep 4": ("strategy=zero2", "parallel.ep=4"),
        "zero1, dp 4, ep 2": ("strategy=zero1", "parallel.ep=2"),
        "fsdp, dp 2 x ulysses 2, ep 4": ("strategy=ulysses", "parallel.ep=4"),
        "fsdp, pp 2 x dp 2, ep 2": ("strategy=moe", PP),
        "ddp, pp 2 x tp 2, ep 2": ("strategy=tp", PP, "parallel.ep=2"),
    },
    8: {"hsdp 2 x 4, ep 2": (*HSDP, "parallel.ep=2")},
}
"""Of moe_tiny."""
JOB = (
    *("data.tokenizer=byte", "data.max_bytes=300000", "schedule=constant", "optimizer.lr=0.001", "record=off"),
    *("train.global_batch_size=8", "train.evaluate_every=-1", "launcher.device=cpu"),
)


def curves(context: Context, jobs: dict[str, dict[str, Any]], folder: str, sources: dict[str, str]) -> dict[str, Any]:
    """On every rank: the losses of whole jobs; `sources`: job -> the one from whose checkpoint it continues."""
    results = {}
    for name, plain in jobs.items():
        load = f"{folder}/{sources[name]}" if name in sources else None
        results[name] = train(context, from_plain(plain), f"{folder}/{name}", load)[0]
    return results


def differences(
    model: str, length: int, ranks: int, layouts: dict[str, tuple[str, ...]], folder: Path
) -> dict[str, Any]:
    """Train every layout on that many ranks, and then on one process from its checkpoint at half of the steps.

    Returns:
        layout -> largest relative difference of its losses from those of one process: over all steps; the same, where
        one process continues at half.
    """
    sizes = (f"data.sequence_length={length}", f"train.micro_batch_size={1 if ranks > 4 else 2}")
    common = [f"model={model}", *sizes, *JOB, f"train.steps={STEPS}"]
    saves = [f"train.steps={HALF}", "checkpoint.at_end=true", "checkpoint.every=0"]

    def plain(world_size: int, *overrides: str) -> dict[str, Any]:
        return planned_job([*common, "checkpoint=off", *overrides], None, world_size).plain

    function = "tests.dist.layouts:curves"
    whole = {name: plain(ranks, *typed) for name, typed in layouts.items()}
    half = {f"{name}, half": plain(ranks, *typed, "checkpoint=default", *saves) for name, typed in layouts.items()}
    rank = run_ranks(function, ranks, {**whole, **half}, str(folder), {}, timeout_s=1200)[0]
    texts = ("strategy=single", "parallel=default")
    alone = {"single": plain(1, *texts), **{f"{name}, resumed": plain(1, *texts) for name in layouts}}
    sources = {f"{name}, resumed": f"{name}, half" for name in layouts}
    single = run_ranks(function, 1, alone, str(folder), sources, timeout_s=1200)[0]

    def worst(losses: list[float]) -> float:
        assert len(losses) == STEPS
        return max(abs(a - b) / abs(b) for a, b in zip(losses, single["single"], strict=True))

    return {name: (worst(rank[name]), worst([*rank[f"{name}, half"], *single[f"{name}, resumed"]])) for name in layouts}
