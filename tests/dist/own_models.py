"""Models as users bring them: no `blocks`, no `initial`, dropout, buffers, tied weights, logits in an object."""

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from diagnostics.contract.artifacts import RunPaths
from dtk.config import schema
from dtk.errors import DtkError
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from dtk.train.export import export
from dtk.train.setup import set_up
from tests.dist.ranks import placed
from tests.dist.training_ranks import config


class OwnBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.relu(self.up(x))))


class Own(nn.Module):
    """Blocks under a name of their own; the head's weight is the embedding's."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.steps = nn.ModuleList(OwnBlock(width) for _ in range(layers))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Any:
        x = self.table(tokens)
        for step in self.steps:
            x = step(x)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return OrderedDict(logits=self.head(x))


OWN = schema.CustomModelConfig(name="own", _target_="tests.dist.own_models.Own", vocab_size=256)


def own(**changes: Any) -> schema.Config:
    return config(**{"model": OWN, "allow_targets": ["tests.dist.own_models.*"], **changes})


def set_up_with(context: Context, cases: dict[str, dict[str, Any]]) -> dict[str, tuple[list[str], int, str]]:
    """`cases`: name -> changes; returns (units of FSDP, blocks whose forward is recomputed, error) of each."""
    results = {}
    for name, changes in cases.items():
        configuration = own(**changes)
        try:
            model = set_up(configuration, placed(context, configuration.strategy)).model
        except DtkError as error:
            results[name] = ([], 0, str(error))
            continue
        units = [unit for unit, module in model.named_modules() if isinstance(module, FSDPModule)]
        recomputed = sum(isinstance(module.__dict__.get("forward"), partial) for module in model.modules())
        results[name] = (units, recomputed, "")
    return results


def exported(context: Context, changes: dict[str, Any], folder: str) -> list[str]:
    """Train two steps and export; returns the names whose exported value is not that of the trained model."""
    configuration = own(**changes)
    context = placed(context, configuration.strategy)
    paths = RunPaths(Path(folder))
    recorder = Recorder(configuration, paths, context.rank, 0, 0, context.world_size, 0, context.device)
    loop = assemble(configuration, context, paths, recorder, StopRequest())
    loop.run()
    export(configuration, loop.parts.model, paths, context, loop.parts.strategy)
    if context.rank:
        return []
    fresh = Own()
    fresh.load_state_dict(load_file(paths.export / "model.safetensors"), strict=True)
    trained = dict(loop.parts.model.named_buffers())
    assert int(trained["norm.num_batches_tracked"]) > 0
    return [name for name, value in fresh.named_buffers() if not torch.equal(value, trained[name])]
