"""`python -m dtk.doctor.copying DEVICE ...`: copies between all devices, checked and timed; a JSON line each."""

import sys
import time
from typing import Any

import torch

from dtk.orphan import run_child, tell

COPY_BYTES = 64 << 20  # Large enough that the fixed cost of a copy (about 10 us) does not count.
REPEATS = 3  # The best of three: others may use the link.


def main(devices: list[str]) -> None:
    """Copy from every device to every other one."""
    for i, source in enumerate(devices):
        # Not the same word everywhere, so that a copy from a wrong place is seen.
        sent = torch.arange(COPY_BYTES // 8, device=source, dtype=torch.int64) * 2654435761 + i
        for j, target in enumerate(devices):
            if i != j:
                tell(begin=source, to=target)
                tell(**{"from": source, "to": target}, **_copy(sent, torch.device(target)))


def _copy(sent: torch.Tensor, target: torch.device) -> dict[str, Any]:
    """Speed of the fastest of some copies, and whether the last one is right."""
    received = torch.zeros_like(sent, device=target)
    best_s = float("inf")
    for _ in range(REPEATS):
        _finish(sent.device, target)
        began = time.perf_counter()
        received.copy_(sent)
        _finish(sent.device, target)
        best_s = min(best_s, time.perf_counter() - began)
    differ = int((received.cpu() != sent.cpu()).sum())
    wrong = {"wrong": f"{differ} of {sent.numel()} words"} if differ else {}
    return {"gb_per_s": COPY_BYTES / best_s / 1e9, **wrong}


def _finish(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


if __name__ == "__main__":
    run_child(lambda: main(sys.argv[1:]))
