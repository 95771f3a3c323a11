"""Evidence for the memory tests: the real small trainings, and jobs put together from texts and snapshots."""

from pathlib import Path

from diagnostics.contract.findings import Detection, Finding
from diagnostics.detectors.memory import DETECTORS
from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits


def detect(folder: Path) -> Detection:
    return DETECTORS[0].detect(gather(folder, Limits()))


def findings(folder: Path) -> dict[str, Finding]:
    return {one.cause.removeprefix("memory."): one for one in detect(folder).findings}


def confirmed(found: dict[str, Finding]) -> list[str]:
    return [name for name, one in found.items() if one.status == "confirmed"]
