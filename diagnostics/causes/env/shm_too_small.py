"""/dev/shm is full or too small for NCCL or for the workers of the data loader."""

import re
from dataclasses import dataclass

from diagnostics.causes.env._failures import Said, failure_cause, lines, speakers
from diagnostics.contract.findings import Finding, Remedy, Text
from diagnostics.contract.formatting import bytes_text
from diagnostics.evidence.model import LogFact

_PATTERN = re.compile(
    r"failed to extend (?P<path>/dev/shm/\S+) to (?P<needed_bytes>\d+) bytes(?:, error: No space left on device)?"
    r"|posix_fallocate failed[^\n]*No space left on device"
    r"|(?P<worker>DataLoader worker .* is killed by signal: Bus error|Unexpected bus error encountered in worker)"
)
_SIZE = "docker run --shm-size=8g (or --ipc=host); Kubernetes: emptyDir {medium: Memory} at /dev/shm"


@dataclass(frozen=True, slots=True)
class TooSmall:
    """Who ran out of it."""

    needed_bytes: int
    """0 = not known."""
    loader: bool
    """The data loader's workers; else NCCL."""
    lines: int

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        size = f" ({bytes_text(self.needed_bytes)} were needed)" if self.needed_bytes else ""
        user = "the data loader's workers" if self.loader else "NCCL"
        return Text(
            summary=f"/dev/shm is full or too small for {user}{size}: a container gives 64 MiB unless told otherwise.",
            measured=lines(self.lines),
            remedies=(Remedy("environment", _SIZE, "ranks of a node exchange data through /dev/shm"),),
        )


def _facts(said: list[Said]) -> tuple[TooSmall, tuple[int, ...]]:
    first = said[0]
    loader = first.kind == "worker_bus_error" or bool(first.fields.get("worker"))
    return TooSmall(int(first.fields.get("needed_bytes") or 0), loader, len(said)), speakers(said)


def _counts(fact: LogFact) -> bool:
    return fact.kind != "nccl_shm" or "full" in fact.fields or "needed_bytes" in fact.fields


CAUSE = failure_cause(
    id="env.shm_too_small",
    title="/dev/shm is too small",
    remedy="--shm-size=8g or --ipc=host; in Kubernetes a memory volume at /dev/shm",
    decided_from="NCCL's and the data loader's texts",
    pattern=_PATTERN,
    kinds=("nccl_shm", "worker_bus_error"),
    facts=_facts,
    counts=_counts,
)
