"""What the tests of the causes of hangs share: small jobs that are played through, and the finding of one cause."""

from pathlib import Path
from typing import Any

from tests.unit.diagnostics.hang.dumps import Job, Op, Shown, detect, evidence, write

STEP = (Op(line=12), Op("all_gather", 64, 14))
"""The calls of one step of a healthy loop."""


def job(*programs: list[Op] | tuple[Op, ...], **more: Any) -> Job:
    """Return a job of one program for each rank."""
    return Job({rank: list(program) for rank, program in enumerate(programs)}, **more)


def finding(folder: Path, played: Job, cause: str, without: tuple[int, ...] = ()) -> Shown:
    """Write the dumps of a job, all but those of some ranks, and return what is decided of one cause."""
    write(folder, played, without=without)
    findings = detect(evidence(folder, world_size=len(played.programs)))
    (item,) = (entry for entry in findings if entry.cause == cause)
    return item
