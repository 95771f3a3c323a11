"""/dev/shm is full or too small for NCCL or for the workers of the data loader."""

import re
from collections.abc import Sequence

from diagnostics.causes.env._failures import Line, failure_cause
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_PATTERN = re.compile(
    r"failed to extend (?P<path>/dev/shm/\S+) to (?P<needed_bytes>\d+) bytes(?:, error: No space left on device)?"
    r"|posix_fallocate failed[^\n]*No space left on device"
    r"|(?P<worker>DataLoader worker .* is killed by signal: Bus error|Unexpected bus error encountered in worker)"
)
_SIZE = "docker run --shm-size=8g (or --ipc=host); Kubernetes: emptyDir {medium: Memory} at /dev/shm"


def _words(finding: Finding, lines: Sequence[Line]) -> tuple[str, Remedy]:
    first = lines[0]
    needed = int(first.fields.get("needed_bytes") or 0)
    size = f" ({bytes_text(needed)} were needed)" if needed else ""
    loader = first.kind == "worker_bus_error" or first.fields.get("worker")
    user = "the data loader's workers" if loader else "NCCL"
    summary = f"/dev/shm is full or too small for {user}{size}: a container gives 64 MiB unless told otherwise."
    return summary, Remedy("environment", _SIZE, "ranks of a node exchange data through /dev/shm")


CAUSE = failure_cause(
    id="env.shm_too_small",
    title="/dev/shm is too small",
    remedy="--shm-size=8g or --ipc=host; in Kubernetes a memory volume at /dev/shm",
    decided_from="NCCL's and the data loader's texts",
    pattern=_PATTERN,
    kinds=("nccl_shm", "worker_bus_error"),
    words=_words,
    counts=lambda fact: fact.kind != "nccl_shm" or "full" in fact.fields or "needed_bytes" in fact.fields,
)
