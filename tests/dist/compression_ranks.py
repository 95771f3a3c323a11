"""On every rank: a step whose gradients are too large for float16; resumes that say what they cannot keep."""

from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record import guard
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from tests.dist.ranks import placed
from tests.dist.training_ranks import config, save_and_load


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


def resumed(context: Context, cases: list[tuple[str, dict[str, Any], str | None]], folder: str) -> dict[str, Any]:
    """As `save_and_load`; name -> (losses, whether this rank said that errors start at zero)."""
    results = {}
    for case in cases:
        guard._reported.clear()
        losses = save_and_load(context, [case], folder)[case[0]]
        results[case[0]] = losses, "resume" in guard._reported
    return results
