"""Where a dtk run should have sharded its model block by block and found no blocks in it."""

from diagnostics.evidence.model import RunEvidence


def blocks_unknown(run: RunEvidence | None) -> bool:
    """Whether each block was to be a unit of a model of the user's own, in which dtk has to find them."""
    if run is None or run.get("model.architecture") != "custom":
        return False
    units = run.get("strategy.blocks_per_unit")
    return isinstance(units, int) and units > 0
