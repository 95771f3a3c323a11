"""On every rank: one step of a layout, all its gradients whole and by name, and what was issued below dtk."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dtk.dimensions.cp as cp
import dtk.dimensions.tp as tp
import dtk.models.initialize as initialize
import dtk.models.layers as layers
import dtk.parallel.collectives as collectives
import dtk.parallel.placement as placement
import dtk.train.setup as setup
from diagnostics.contract.artifacts import RunPaths
from dtk.config import schema
from dtk.data.build import build_dataset
from dtk.data.dataset import Batch
from dtk.parallel.context import Context
from dtk.parallel.placement import local_piece, replica
from dtk.parallel.regions import observe
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.sharding.base import Strategy, owned_state
from dtk.strategies.fsdp import FSDP
from dtk.train.assemble import assemble
from dtk.train.evaluation import evaluate
from dtk.train.export import export
from tests.dist.collectives_ranks import Listener, WireTap, summed
from tests.dist.ranks import placed
from tests.dist.training_ranks import config

GPT = schema.GPTConfig(name="probe", vocab_size=256, context_length=64, layers=2, heads=4, width=32)
LLAMA = schema.LlamaConfig(
    name="probe", vocab_size=260, context_length=64, layers=2, heads=4, kv_heads=4, width=32, ffn_width=48
)
MOE = schema.MoEConfig(
    name="probe", vocab_size=260, context_length=64, layers=2, heads=4, kv_heads=4, width=32, ffn_width=48,
    experts=4, expert_width=24, balance_loss=0.1, z_loss=0.01,
)  # fmt: skip
MODELS = {
    "gpt": GPT,
    "llama": LLAMA,
    "llama tied": replace(LLAMA, tie_weights=True, kv_heads=2),
    "gpt large": replace(GPT, width=256, vocab_size=512),
    "moe": MOE,
    "moe top 1": replace(MOE, experts_per_token=1, shared_experts=1, dense_layers=1, layers=3),
    "moe capacity": replace(MOE, capacity_factor=1.0),
}
TRAIN = schema.TrainConfig(steps=20, global_batch_size=8, micro_batch_size=1, evaluate_every=-1, evaluate_samples=5)


def configuration(model: str, strategy: Any, parallel: dict[str, Any], **changes: Any) -> schema.Config:
    sections = {"model": MODELS[model], "strategy": strategy, "parallel": schema.ParallelConfig(**parallel)}
    return config(**{**sections, "train": TRAIN, **changes})


def whole(tensor: torch.Tensor, context: Context, strategy: Strategy) -> torch.Tensor:
    """A possibly sharded tensor put together by offsets; what several ranks hold counts once."""
    local, piece = local_piece(tensor)
    full = torch.zeros(tensor.shape, dtype=torch.float64)
    place = strategy.mesh.coordinate(context.rank)
    first = place["expert_replicate" if placement.over_ep(tensor) else "dp_replicate"] == 0
    if replica(tensor)[0] == 0 and first and (hasattr(tensor, "placements") or context.rank == 0):
        full[piece.box] = local.double()
    if context.world_size > 1:
        dist.all_reduce(full)
    return full


def _rows_by_part(patch: pytest.MonkeyPatch) -> None:
    """Fused rows stand as [queries | keys | values] and are read so: right on one rank, wrong when cut plainly."""
    forward = layers.Column.forward

    def by_part(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        if self.out_features != 3 * self.in_features:
            return y
        return y.unflatten(2, (3, -1, GPT.width // GPT.heads)).transpose(2, 3).flatten(2)

    patch.setattr(layers.Column, "forward", by_part)
    patch.setattr(initialize, "fused_heads", lambda model, name: None)


def _no_sum(patch: pytest.MonkeyPatch) -> None:
    """Row-cut layers keep their own partial result."""
    patch.setattr(layers, "scatter_sum", lambda x, dim, axis: x.chunk(axis.size, dim)[axis.rank])


def _no_reduce(patch: pytest.MonkeyPatch) -> None:
    """The all_reduce behind row-cut layers is left out, where every rank has the whole sequence."""
    patch.setattr(layers, "reduce", lambda x, axis: x)


def _no_partial_sums(patch: pytest.MonkeyPatch) -> None:
    """Gradients of norms stay those of a rank's own part of the sequence."""
    patch.setattr(tp, "cut_model", _cut_and_forget(tp.cut_model))


def _cut_and_forget(cut: Any) -> Any:
    def run(config: Any, model: Any, strategy: Any) -> None:
        cut(config, model, strategy)
        strategy.partial_over_tp.clear()

    return run


def _swapped_groups(patch: pytest.MonkeyPatch) -> None:
    """The groups of tp and dp_shard take each other's place."""
    axes = Strategy.axes.func

    def swapped(self: Any) -> Any:
        result = dict(axes(self))
        result["tp"], result["dp_shard"] = result["dp_shard"], result["tp"]
        return result

    patch.setattr(Strategy, "axes", property(swapped))


def _positions_of_a_whole_sequence(patch: pytest.MonkeyPatch) -> None:
    """Every rank takes its tokens for the first ones."""
    patch.setattr(cp.Part, "positions", lambda self, batch: torch.arange(batch.inputs.shape[1] // self.axis.size))


def _consecutive_tokens(patch: pytest.MonkeyPatch) -> None:
    """The ring gets tokens in the order of Ulysses."""
    patch.setattr(cp.Part, "_cut", lambda self, x, dim: x.chunk(self.axis.size, dim)[self.axis.rank].contiguous())


def _experts_as_all_else(patch: pytest.MonkeyPatch) -> None:
    """Gradients of experts are averaged over the ranks that have the same ones only."""
    patch.setattr(FSDP, "_average", lambda self, dimension, divisor, gradient: None)


def _copies_counted(patch: pytest.MonkeyPatch) -> None:
    """Each rank of an ep group counts what all of them have alike."""
    patch.setattr(placement, "mark_copy", lambda parameter, index, count: None)


MUTATIONS = {
    "experts as all else": _experts_as_all_else,
    "copies counted": _copies_counted,
    "positions of a whole sequence": _positions_of_a_whole_sequence,
    "consecutive tokens": _consecutive_tokens,
    "rows by part": _rows_by_part,
    "no sum": _no_sum,
    "no all_reduce": _no_reduce,
    "no partial sums": _no_partial_sums,
    "swapped groups": _swapped_groups,
}


def one_step(context: Context, config: schema.Config, wire: bool = False) -> dict[str, Any]:
    """Loss, gradients, norm, losses after the step and on held-out samples, as doubles that are equal on all ranks."""
    context = placed(context, config)
    listener = Listener()
    observe([listener])
    parts = setup.set_up(config, context)
    data = build_dataset(config.data)
    plan = config.batch_plan(context.world_size)
    ids = list(range(config.train.global_batch_size))
    batches: list[Batch] = []
    for i in range(plan.accumulation_steps):
        batches.append(data.train(torch.tensor(ids)[plan.positions(context.dp_rank, i)].numpy()))
    targets = config.train.global_batch_size * config.data.sequence_length
    tap = WireTap()
    listener.regions.clear()

    def losses() -> torch.Tensor:
        return parts.runner.run(batches, parts.strategy.loss_factor / targets, lambda i: None)

    def over_ranks(value: torch.Tensor) -> float:
        value = value.double() * context.leads_tokens
        if context.world_size > 1:
            dist.all_reduce(value)
        return float(value) / targets

    heard = tap if wire else nullcontext()
    with heard:
        first = losses()
        norm = parts.strategy.gradient_norm(parts.model.parameters())
    declared = summed_declared(config, context, parts)
    misplaced = [
        name
        for name, p in parts.model.named_parameters()
        if hasattr(p, "placements") and (p.grad is None or p.grad.placements != p.placements)
    ]
    gradients = {name: whole(p.grad, context, parts.strategy) for name, p in parts.model.named_parameters()}
    with heard:
        parts.optimizer.step()
    issued, marked = summed(tap.calls), summed(listener.regions)
    used = parts.runner.figures() if config.model.architecture == "moe" else {}
    parts.optimizer.zero_grad()
    after = losses()
    parts.optimizer.zero_grad()
    held_out = evaluate(config, context, data, parts)
    observe([])
    return {
        "loss": over_ranks(first),
        "norm": float(norm),
        "gradients": gradients if context.rank == 0 else {},
        "after": over_ranks(after),
        "held out": held_out["validation_loss"],
        "accuracy": held_out["validation_accuracy"],
        "misplaced": misplaced,
        "experts": {name: value for name, value in used.items() if "rank" not in name},
        "issued": issued,
        "marked": marked,
        "declared": declared,
    }


def summed_declared(config: schema.Config, context: Context, parts: Any) -> dict[Any, tuple[int, int]]:
    steps = config.batch_plan(context.world_size).accumulation_steps
    declared = parts.runner.collectives(steps, clips=True)
    totals: dict[Any, tuple[int, int]] = {}
    for c in declared:
        count, size = totals.get((c.op, c.group), (0, 0))
        totals[c.op, c.group] = count + c.count, size + c.size_bytes
    return totals


def steps_of(
    context: Context, cases: dict[str, schema.Config], mutations: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """`mutations`: (name of a mutation, name of a case); their results stand under the pair."""
    results: dict[Any, Any] = {name: one_step(context, case, wire=True) for name, case in cases.items()}
    for mutation, name in mutations:
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[mutation](patch)
            results[mutation, name] = one_step(context, cases[name])
    return results


def gradients_by_difference(context: Context) -> dict[str, float]:
    """Name -> largest difference of each collective's backward from central differences, in float64.

    The loss is the sum over the ranks of a weighted sum of what each gets; after `reduce` and `join` all ranks compute
    one loss alike, and before `copy` they have one input.
    """
    axis = collectives.Axis("tp", dist.group.WORLD, context.rank, context.world_size)
    generator = torch.Generator().manual_seed(context.rank)
    alike = torch.Generator().manual_seed(7)
    ranks = context.world_size
    rows = [[2 + (j == (i + 1) % ranks) - (j == (i + 2) % ranks) for j in range(ranks)] for i in range(ranks)]
    sent, received = rows[context.rank], [each[context.rank] for each in rows]

    def exchange_rows(x: torch.Tensor) -> torch.Tensor:
        return collectives.exchange_rows(x.transpose(0, 1), sent, received, axis, len(x)).transpose(0, 1)

    functions = {
        "exchange_rows": (exchange_rows, generator, generator, True),
        "gather": (lambda x: collectives.gather(x, 1, axis), generator, generator, True),
        "scatter_sum": (lambda x: collectives.scatter_sum(x, 1, axis), generator, generator, True),
        "exchange": (lambda x: collectives.exchange(x, 2, 1, axis), generator, generator, True),
        "copy": (lambda x: collectives.copy(x, axis) ** 2, alike, generator, True),
        "reduce": (lambda x: collectives.reduce(x, axis) ** 2, generator, alike, False),
        "join": (lambda x: collectives.join(x, 1, axis) ** 2, generator, alike, False),
    }
    by_name = {}
    for name, (function, inputs, weights, summed_over_ranks) in functions.items():
        # Not contiguous, as what arrives from a transposed product.
        x = torch.randn(ranks, 2 * ranks, 2, generator=inputs, dtype=torch.float64).transpose(0, 2).requires_grad_()
        y = function(x)
        weight = torch.randn(y.shape, generator=weights, dtype=torch.float64)
        (y * weight).transpose(0, 1).sum().backward()

        def loss(x: torch.Tensor, function=function, weight=weight, summed=summed_over_ranks) -> float:
            value = (function(x) * weight).sum()
            if summed:
                dist.all_reduce(value)
            return float(value)

        worst = 0.0
        for owner in [None] if name == "copy" else range(ranks):
            for i in range(x.numel()):
                step = torch.zeros(x.numel(), dtype=torch.float64)
                step[i] = 1e-5 if owner in (None, context.rank) else 0.0
                step = step.view(x.shape)
                slope = (loss(x.detach() + step) - loss(x.detach() - step)) / 2e-5
                if owner in (None, context.rank):
                    worst = max(worst, abs(slope - float(x.grad.reshape(-1)[i])))
        by_name[name] = worst
    return {**by_name, "cross_entropy_sum": _cross_entropy(axis)}


def attention_over_ranks(context: Context, heads: int, kv_heads: int) -> dict[str, list[float]]:
    """Method -> largest difference of attention and of its three gradients from torch's over the whole sequence."""
    axis = collectives.Axis("cp", dist.group.WORLD, context.rank, context.world_size)
    generator = torch.Generator().manual_seed(5)
    length = 6 * axis.size
    whole = [torch.randn(2, n, length, 8, generator=generator).requires_grad_() for n in (heads, kv_heads, kv_heads)]
    weight = torch.randn(2, heads, length, 8, generator=generator)
    expected = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    (expected * weight).sum().backward()
    by_method = {}
    for method, core in (("ring", cp._ring), ("ulysses", cp._ulysses)):
        part = cp.Part(axis, method)
        own = [part._cut(each.detach(), 2).requires_grad_() for each in whole]
        y = core(axis, *own, 0.0)
        (y * part._cut(weight, 2)).sum().backward()
        pairs = [(y, expected), *((each.grad, all.grad) for each, all in zip(own, whole, strict=True))]
        by_method[method] = [float((each - part._cut(all, 2)).detach().abs().max()) for each, all in pairs]
    return by_method


def _cross_entropy(axis: collectives.Axis) -> float:
    """Largest difference of the divided loss and its gradient from torch's on the whole vocabulary."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 4 * axis.size, generator=generator, dtype=torch.float64) * 5
    targets = torch.tensor([0, 1, -100, 4 * axis.size - 1, 3, -100])
    whole, part = logits.clone().requires_grad_(), logits.chunk(axis.size, 1)[axis.rank].clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole, targets, ignore_index=-100, reduction="sum")
    loss = collectives.cross_entropy_sum(part, targets, -100, axis)
    (3 * expected).backward()
    (3 * loss).backward()
    own = whole.grad.chunk(axis.size, 1)[axis.rank]
    return max(float((loss - expected).abs()), float((part.grad - own).abs().max()))


def export_and_read_back(context: Context, changes: dict[str, Any], folder: str) -> bool:
    """Export the initial weights; keep states after a step, lose them, and read them; whether all came back."""
    configuration = config(**changes)
    context, paths = placed(context, configuration), RunPaths(Path(folder))
    recorder = Recorder(configuration, paths, context.rank, 0, 0, context.world_size, 0, context.device)
    loop = assemble(configuration, context, paths, recorder, StopRequest())
    model, optimizer = loop.parts.model, loop.parts.optimizer
    export(configuration, model, paths, context, loop.parts.strategy)
    loop.measures.start(0)
    loop.advance()
    written = {name: [whole_bits(value) for value in values] for name, values in states(model, optimizer).items()}
    loop.checkpoints.save(model, optimizer, loop.state)
    loop.checkpoints.wait()
    with torch.no_grad():
        for values in states(model, optimizer).values():
            for value in values:
                local_piece(value)[0].zero_()
    loop.checkpoints.load(paths.checkpoint(loop.state.step), model, optimizer)
    return all(
        torch.equal(whole_bits(value), before)
        for name, values in states(model, optimizer).items()
        for value, before in zip(values, written[name], strict=True)
    )


def states(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[torch.Tensor]]:
    """Each parameter with what this rank's optimizer keeps for it."""
    owned = owned_state(optimizer)
    return {name: [p, *(v for v in owned.get(p, {}).values() if v.dim())] for name, p in model.named_parameters()}


def whole_bits(value: torch.Tensor) -> torch.Tensor:
    return local_piece(value)[0].clone()
