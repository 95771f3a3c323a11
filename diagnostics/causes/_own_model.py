"""Detects dtk runs that should have sharded the model block by block but found no blocks in it."""

from diagnostics.evidence.model import RunEvidence


def blocks_unknown(run: RunEvidence | None) -> bool:
    """Return whether the run shards the user's own model block by block, so that dtk has to find the blocks."""
    if run is None or run.get("model.architecture") != "custom":
        return False
    units = run.get("strategy.blocks_per_unit")
    return isinstance(units, int) and units > 0
