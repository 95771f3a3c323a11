"""On every rank: a step whose gradients are too large for float16."""

from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record import guard
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from tests.dist.ranks import placed
from tests.dist.training_ranks import config


def large_gradients(
    context: Context, cases: dict[str, dict[str, Any]], folder: str
) -> dict[str, tuple[int | None, bool]]:
    """Name of a case -> (what the metrics record counts, whether this rank warned)."""
    results = {}
    for name, changes in cases.items():
        guard._reported.clear()
        paths, configuration = RunPaths(Path(f"{folder}/{name}")), config(**changes)
        recorder = Recorder(configuration, paths, context.rank, 0, 0, context.world_size, 0, context.device)
        recorder.start()
        loop = assemble(configuration, placed(context, configuration), paths, recorder, StopRequest())
        loop.scaler.scale = 1e9
        loop.measures.start(0)
        loop.advance()
        warned = any("communication_hook" in topic for topic in guard._reported)
        results[name] = (loop.last.get("float16_overflows"), warned)
        recorder.close()
    return results
