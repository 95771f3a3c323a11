"""Final loss with compressed gradients, and what compression makes of an update. Prints Markdown.

    python benchmarks/compression.py --seeds 5 --steps 300
    python benchmarks/compression.py --seeds 20 --steps 200 --optimizers "AdamW, lr 0.01" --hooks bf16 int8
    python benchmarks/compression.py --updates --steps 200
    python benchmarks/compression.py --memory
    python benchmarks/compression.py --zeropp

A one-block GPT on the embedded corpus under ddp, two gloo ranks. The first table has, for each optimizer, the mean of
the last 20 losses without compression, and by how much each hook's is above it: mean and standard deviation over the
seeds (initial weights and order of samples), each against the run of the same seed without compression. `bf16` says
how far apart rounding alone brings two runs.

`--updates`: one process trains without compression, and at each step every hook compresses the same gradient too. The
table has how far the sum of all gradients, Adam's first moment and AdamW's update computed from what it sends are from
those of the whole gradients: the norm of the difference relative to the norm, mean over the second half of the steps.

`--memory`: peak resident memory (VmHWM of the fuller rank from the second step on) with each hook above that without,
beside what the plan says; a model of 4 blocks of width 512. What the tensors of a thread take is in it, unlike in the
profiler's events.

`--zeropp`: final losses of fsdp with int8 weights and gradients on the wire, AdamW, 200 steps, by seed.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tiers  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from dtk.config import schema  # noqa: E402
from dtk.data.build import build_dataset  # noqa: E402
from dtk.models.build import build_model  # noqa: E402
from dtk.models.initialize import initialize  # noqa: E402
from dtk.parallel.ddp_hooks import Compressed, Int8, TopK  # noqa: E402
from dtk.plan.formulas.closed_form import closed_form  # noqa: E402
from dtk.plan.job import planned_job  # noqa: E402
from dtk.strategies.ddp import DDPConfig  # noqa: E402
from dtk.strategies.fsdp import FSDPConfig  # noqa: E402
from tests.dist.ranks import run_ranks  # noqa: E402
from tests.dist.training_ranks import config  # noqa: E402

LAST = 20
"""Steps of which the final loss is the mean."""
OPTIMIZERS: dict[str, Any] = {
    "SGD, lr 0.1": schema.SGDConfig(lr=0.1, momentum=0.0, nesterov=False),
    "SGD with momentum 0.9, lr 0.03": schema.SGDConfig(lr=0.03, momentum=0.9, nesterov=False),
    "AdamW, lr 0.003": schema.AdamWConfig(lr=3e-3),
    "AdamW, lr 0.01": schema.AdamWConfig(lr=1e-2),
}
HOOKS: dict[str, dict[str, Any]] = {
    "bf16": {"communication_hook": "bf16"},
    "int8": {"communication_hook": "int8"},
    "topk of 25%": {"communication_hook": "topk", "topk_ratio": 0.25},
    "topk of 1%": {"communication_hook": "topk", "topk_ratio": 0.01},
    "powersgd of rank 4": {"communication_hook": "powersgd", "powersgd_rank": 4},
    "powersgd of rank 1": {"communication_hook": "powersgd", "powersgd_rank": 1},
}
FORGETS = ", without feedback"
CASES = {"none": DDPConfig()}
for name, keys in HOOKS.items():
    CASES[name] = DDPConfig(**keys)
    if name != "bf16":
        CASES[f"{name}{FORGETS}"] = DDPConfig(**keys, error_feedback=False)
TASK = {
    "model": replace(config().model, layers=1, width=16, heads=2),
    "data": replace(config().data, sequence_length=16),
    "schedule": schema.ConstantSchedule(warmup_steps=10),
}


def final_losses(optimizer: Any, cases: list[str], seeds: int, steps: int) -> dict[str, list[float]]:
    """Return case -> the final loss of each seed."""
    train = replace(config().train, steps=steps, micro_batch_size=8, clip_norm=None)
    shared = {**TASK, "optimizer": optimizer, "train": train}
    by_name = {}
    for name in cases:
        runs = {str(seed): {**shared, "strategy": CASES[name], "seed": seed} for seed in range(1, seeds + 1)}
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_ranks("tests.dist.training_ranks:train_as_recorded", 2, runs, folder, timeout_s=1200)
        by_name[name] = [fmean(losses[-LAST:]) for losses, _, _ in ranks[0].values()]
    return by_name


def losses_table(optimizers: list[str], cases: list[str], seeds: int, steps: int) -> None:
    """Print the first table."""
    columns = [final_losses(OPTIMIZERS[name], ["none", *cases], seeds, steps) for name in optimizers]
    print("| hook | " + " | ".join(optimizers) + " |\n|" + "---|" * (1 + len(optimizers)))
    print("| none | " + " | ".join(f"{fmean(column['none']):.3f}" for column in columns) + " |")
    for name in cases:
        row = []
        for column in columns:
            above = [100 * (loss / whole - 1) for loss, whole in zip(column[name], column["none"], strict=True)]
            row.append(f"{fmean(above):+.1f} ± {stdev(above):.1f}%")
        print(f"| {name} | " + " | ".join(row) + " |")


def updates_table(lr: float, steps: int) -> None:
    """Print the second table."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    job = config(**{key: TASK[key] for key in ("model", "data")})
    with torch.device("meta"):
        model = build_model(job.model, [])
    model.to_empty(device="cpu")
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        initialize(parameter, name, model.initial(name), job.seed)
    own = list(parameters.values())
    hooks: dict[str, Compressed] = {}
    for kind in (Int8, TopK):
        for feedback in (True, False):
            title = {Int8: "int8", TopK: "topk of 1%"}[kind] + ("" if feedback else FORGETS)
            hooks[title] = kind(None, own, feedback)
            if kind is TopK:
                hooks[title].ratio = 0.01  # type: ignore[attr-defined]
    dataset, order = build_dataset(job.data), torch.Generator().manual_seed(job.seed)
    optimizer = torch.optim.AdamW(own, lr=lr, betas=(0.9, 0.95))
    zeros = torch.zeros(sum(p.numel() for p in own))
    sums, first, second = ({name: zeros.clone() for name in ("none", *hooks)} for _ in range(3))
    apart: dict[str, list[tuple[float, ...]]] = {name: [] for name in hooks}
    for step in range(1, steps + 1):
        batch = dataset.train(torch.randint(dataset.train_size, (16,), generator=order).numpy())
        optimizer.zero_grad()
        logits = model(batch.inputs)
        F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten()).backward()
        whole = torch.cat([p.grad.flatten() for p in own])
        updates = {}
        for name in sums:
            gradient = whole.clone()
            if name != "none":
                errors = hooks[name].errors
                parts, kept = list(torch.split(gradient, [p.numel() for p in own])), errors.of(own) if errors else []
                if kept:
                    torch._foreach_add_(parts, kept)
                hooks[name].average(gradient, parts, kept)
            sums[name] += gradient
            first[name].lerp_(gradient, 0.1)
            second[name].lerp_(gradient.square(), 0.05)
            corrected = (second[name] / (1 - 0.95**step)).sqrt() + 1e-8
            updates[name] = first[name] / (1 - 0.9**step) / corrected
        if step > steps // 2:
            for name in hooks:
                pairs = ((of[name] - of["none"]).norm() / of["none"].norm() for of in (sums, first, updates))
                apart[name].append(tuple(map(float, pairs)))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, step / 10)
        optimizer.step()
    print("| hook | sum of gradients | first moment | AdamW's update |\n|---|---|---|---|")
    for name, rows in apart.items():
        print(f"| {name} | " + " | ".join(f"{100 * fmean(column):.2f}%" for column in zip(*rows, strict=True)) + " |")


def zeropp_table(seeds: int, steps: int) -> None:
    """Print the fourth table."""
    train = replace(config().train, steps=steps, micro_batch_size=8, clip_norm=None)
    shared = {**TASK, "optimizer": config().optimizer, "train": train}
    cases = {
        name: FSDPConfig(quantized_weights=weights, quantized_gradients=gradients)
        for name, weights, gradients in (
            *(("whole", False, False), ("int8 weights", True, False)),
            *(("int8 gradients", False, True), ("both", True, True)),
        )
    }
    by_name: dict[str, list[float]] = {}
    for name, section in cases.items():
        runs = {str(seed): {**shared, "strategy": section, "seed": seed} for seed in range(1, seeds + 1)}
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_ranks("tests.dist.training_ranks:train_as_recorded", 2, runs, folder, timeout_s=1200)
        by_name[name] = [fmean(losses[-LAST:]) for losses, _, _ in ranks[0].values()]
    print("| on the wire | mean of the last 20 losses | above whole |\n|---|---|---|")
    for name, losses in by_name.items():
        above = [100 * (loss / whole - 1) for loss, whole in zip(losses, by_name["whole"], strict=True)]
        deviation = f" ± {stdev(above):.2f}" if seeds > 1 else ""
        spread = f"{fmean(above):+.2f}{deviation}%" if name != "whole" else ""
        print(f"| {name} | {fmean(losses):.4f} | {spread} |", flush=True)


def memory_table() -> None:
    """Print the third table."""
    job = [override for override in tiers.MODEL if not override.startswith("strategy=")]
    print("| hook | peak above `none`, MiB | by the plan, MiB |\n|---|---|---|")
    before = (0, 0)
    for kind in ("none", "bf16", "int8", "topk", "powersgd"):
        hook = f"strategy.communication_hook={kind}"
        planned = planned_job([*job, "strategy=ddp", "model.layers=4", hook], None, 2)
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_ranks("tests.dist.tier_ranks:measure", 2, planned.plain, folder, 4, 0, timeout_s=600)
        measured, expected = max(rank["peak_bytes"] for rank in ranks), closed_form(planned.config, 2).memory.peak_bytes
        before = (measured, expected) if kind == "none" else before
        print(f"| {kind} | {(measured - before[0]) / 2**20:.1f} | {(expected - before[1]) / 2**20:.1f} |", flush=True)


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS)[:3])
    parser.add_argument("--hooks", nargs="+", choices=HOOKS, default=list(HOOKS))
    parser.add_argument("--updates", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--zeropp", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-2, help="of --updates")
    arguments = parser.parse_args()
    if arguments.memory:
        memory_table()
    elif arguments.zeropp:
        zeropp_table(arguments.seeds, arguments.steps)
    elif arguments.updates:
        updates_table(arguments.lr, arguments.steps)
    else:
        cases = [name for name in CASES if name.removesuffix(FORGETS) in arguments.hooks]
        losses_table(arguments.optimizers, cases, arguments.seeds, arguments.steps)


if __name__ == "__main__":
    main()
