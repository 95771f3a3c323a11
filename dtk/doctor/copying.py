"""`python -m dtk.doctor.copying DEVICE ...`: copies between all devices, checked and timed; a JSON line each."""

import sys
from functools import partial

import torch

from dtk.parallel.verified import timed_s
from dtk.rank.child import run_child, send_record

COPY_BYTES = 64 << 20  # Chosen: large enough that the fixed cost of a copy (about 10 us) is negligible.
REPEATS = 3  # Chosen: the best of three counts, as other processes may use the link.


def main(devices: list[str]) -> None:
    """Copy from every device to every other one."""
    for i, source in enumerate(devices):
        # Different values, so that a copy from a wrong offset is detected.
        sent = torch.arange(COPY_BYTES // 8, device=source, dtype=torch.int64) * 2654435761 + i
        for j, target in enumerate(devices):
            if i != j:
                send_record(begin=source, to=target)
                received = torch.zeros_like(sent, device=target)
                copy = partial(received.copy_, sent)
                best_s = min(timed_s(copy, source, target) for _ in range(REPEATS))
                differ = int((received.cpu() != sent.cpu()).sum())
                wrong = {"wrong": f"{differ} of {sent.numel()} words"} if differ else {}
                send_record(**{"from": source, "to": target, "gb_per_s": COPY_BYTES / best_s / 1e9}, **wrong)


if __name__ == "__main__":
    run_child(lambda: main(sys.argv[1:]))
