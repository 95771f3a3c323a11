"""Ranks whose models differ: DDP compares the parameters of each with those of rank 0 when it is made, and raises.

Who raises is not always who differs: rank 0 never does. Decides nothing else.
"""

from dataclasses import replace

from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context


def settle(context: Context, raised: Finding) -> Finding:
    """The finding on ranks that raised so, with those to blame that differ from the majority."""
    world = context.world()
    if len(raised.ranks) < world - 1 or 0 in raised.ranks:
        return raised  # They are the fewer ones.
    if world > 2:
        victims = tuple(rank for rank in range(world) if rank)
        told = f" All of {say.ranks(victims)} raised the same: it is the model of rank 0 that differs."
        return replace(raised, ranks=(0,), victims=victims, summary=raised.summary + told, confidence=0.9)
    tie = " Of two ranks it cannot be told which has the wrong model."
    return replace(raised, ranks=(0, 1), victims=(), summary=raised.summary + tie, confidence=0.9)
