"""The trained weights as safetensors, gathered parameter by parameter: no rank holds the whole model."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.invocation import typed
from dtk.config.schema import Config
from dtk.models.hf import export_weights
from dtk.parallel.context import Context
from dtk.parallel.regions import communication, region
from dtk.train.progress import say


def export(config: Config, model: nn.Module, paths: RunPaths, context: Context) -> None:
    """Write `export/model.safetensors` and `config.json`; every rank must call it."""
    with region("export"):
        if context.rank == 0:
            shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
            export_weights(config.model, shapes, _gathered(model), paths.export)
            say(f"weights exported to {typed(paths.export)}")
        else:
            for _ in _gathered(model):
                pass


def _gathered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each parameter whole and on the CPU, one at a time, in the same order on every rank."""
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if hasattr(value, "full_tensor"):
            with communication("all_gather", value.numel() * value.element_size(), "dp_shard"):
                value = value.full_tensor()
        yield name, value.to("cpu", torch.float32)
