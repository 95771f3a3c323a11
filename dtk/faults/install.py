"""Maps the name of a fault in the configuration to its loop."""

import dataclasses

from dtk.faults import desync, layouts, ranks, steps  # noqa: F401  Each enters its faults.
from dtk.faults.base import FAULTS
from dtk.train.loop import Loop


def install(loop: Loop) -> Loop:
    """Return the loop with its configured fault built in, or the same loop if the fault consists of settings."""
    faulty = FAULTS.get(loop.config.fault.name)
    if faulty is None:
        return loop
    return faulty(**{field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)})
