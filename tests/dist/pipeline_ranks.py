"""On every rank: steps of a pipeline, with their gradients by name and what they put on the wire."""

from typing import Any

import torch

from dtk.data.dataset import Batch
from dtk.parallel.context import Context
from dtk.parallel.regions import observe
from dtk.train.setup import set_up
from tests.dist.collectives_ranks import Listener, WireTap, summed
from tests.dist.ranks import placed
from tests.dist.training_ranks import config

SAMPLES, LENGTH = 12, 32


def steps(context: Context, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Run a step for its gradients and two more, the last of which is recorded. `mutation` damages the runner first."""
    return {name: _steps(context, **changes) for name, changes in cases.items()}


def _steps(context: Context, mutation: str = "", **changes: Any) -> dict[str, Any]:
    configuration = config(**changes)
    context = placed(context, configuration)
    listener = Listener()
    observe([listener])
    parts = set_up(configuration, context)
    if mutation == "no sum of the shared weights":
        parts.runner.shared = None
    elif mutation == "shared weights count twice":
        for parameter in parts.runner.shared.parameters:
            del parameter._dtk_copy
    plan = configuration.batch_plan(context.world_size)
    tokens = torch.randint(0, 256, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(7))
    mine = [tokens[plan.positions(context.dp_rank, i)] for i in range(plan.accumulation_steps)]
    batches = [Batch(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in mine]
    for number in range(3):
        tap = WireTap()
        listener.regions.clear()
        with tap:
            loss = parts.runner.run(batches, parts.strategy.loss_factor / (SAMPLES * LENGTH), lambda i: None)
            norm = parts.strategy.gradient_norm(parts.model.parameters())
        if number == 0:
            results = {
                "loss": float(loss) * context.leads_tokens,
                "norm": float(norm),
                "gradients": _gradients(parts.model),
            }
        parts.optimizer.step()
        parts.optimizer.zero_grad()
    observe([])
    declared = parts.runner.collectives(plan.accumulation_steps, clips=True)
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for each in declared:
        count, size_bytes = totals.get((each.op, each.group), (0, 0))
        totals[each.op, each.group] = count + each.count, size_bytes + each.size_bytes
    return {**results, "declared": totals, "wire": summed(tap.calls), "regions": summed(listener.regions)}


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Whole gradients by name."""
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for name, g in grads.items()}
