"""On every rank: the parts of all weights and optimizer states that it holds, after training or after a resume."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints
from dtk.parallel.context import Context
from dtk.parallel.placement import local_piece
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.sharding.base import owned_state
from dtk.train.assemble import assemble
from tests.dist.ranks import placed
from tests.dist.training_ranks import config

Part = tuple[tuple[int, ...], tuple[slice, ...], np.ndarray]
"""Shape of the whole, where the part lies in it, and its values."""


def parts(
    context: Context, cases: dict[str, dict[str, Any]], folder: str, sources: tuple[str, ...] = ()
) -> dict[Any, dict[str, Part]]:
    """`cases`: layout -> changes of the configuration. Without `sources` each is trained and saved; else it loads them.

    Returns:
        layout, or (source, layout) -> name of a tensor -> this rank's part of it.
    """
    result = {}
    for name, changes in cases.items():
        for source in sources or (name,):
            configuration = config(**changes)
            here, paths = placed(context, configuration), RunPaths(Path(folder, source))
            recorder = Recorder(configuration, paths, here.rank, 0, 0, here.world_size, 0, here.device)
            newest = complete_checkpoints(paths)[-1] if sources else None
            loop = assemble(configuration, here, paths, recorder, StopRequest(), newest)
            if not sources:
                loop.run()
            result[(source, name) if sources else name] = _parts(loop.parts.model, loop.parts.optimizer)
    return result


def _parts(model: torch.nn.Module, optimizer: Any) -> dict[str, Part]:
    states, result = owned_state(optimizer), {}
    for name, parameter in model.named_parameters():
        tensors = {"": parameter, **{f".{key}": value for key, value in states.get(parameter, {}).items()}}
        for key, value in tensors.items():
            local, piece = local_piece(value)
            result[name + key] = tuple(value.shape), piece.box, local.clone().numpy()
    return result
