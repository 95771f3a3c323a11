"""One rank of one launch: python -m dtk.bench.rank SPEC, with RANK, WORLD_SIZE, MASTER_ADDR and the rest set.
Rank 0 writes JSON lines: {"at"}, {"about"}, {"cell"}, {"left_out"}, {"pass"}. Any rank that fails writes {"error"}.
"""

import platform
import re
import sys
from typing import Any

import torch
import torch.distributed as dist

from diagnostics.contract.formatting import bytes_text
from diagnostics.evidence.endings import is_out_of_memory
from dtk.bench.bandwidth import OPERATIONS
from dtk.bench.model import Spec, key_of, loads
from dtk.parallel.context import Context, join, meet
from dtk.parallel.verified import Buffers, make, timed_s, wrong_elements
from dtk.rank.child import run_child, send_record

_NOT_OFFERED = re.compile(r"invalid scalar type|not supported|unsupported|does not support|not implemented", re.I)
"""Error texts of a backend that lacks an operation or dtype, which it raises on every rank before sending."""
_START_S = 120.0  # Chosen: importing torch takes seconds, on a cold network file system a minute.


class Bench:
    """Measures all cells of one launch on this rank. Decisions use reduced figures, so all ranks issue equal calls."""

    def __init__(self, spec: Spec, context: Context) -> None:
        self.spec = spec
        self.context = context
        self.cells: dict[str, tuple[Buffers, int]] = {}
        """Key -> buffers, and calls per figure."""
        self.spent_s = 0.0
        """Used part of the budget, from reduced figures."""

    def run(self) -> None:
        """Warm up, verify and measure."""
        on_cuda = self.context.device.type == "cuda"
        nccl = torch.cuda.nccl.version() if self.context.backend == "nccl" else ()  # type: ignore[no-untyped-call]
        about = {
            "world_size": self.context.world_size,
            "host": platform.node(),
            "device": torch.cuda.get_device_name() if on_cuda else platform.processor() or platform.machine(),
            "torch": str(torch.__version__),
            "nccl": ".".join(map(str, nccl)) or None,
        }
        self._tell(about=about)
        element = getattr(torch, self.spec.dtype)
        for operation in self.spec.operations:
            fits = OPERATIONS[operation].fitted
            sizes = (fits(size, self.context.world_size, element.itemsize) for size in self.spec.sizes_bytes)
            for size in dict.fromkeys(sizes):  # Until a size exceeds the budget.
                self._tell(at=f"warm-up: {operation} of {bytes_text(size)}")
                if reason := self._warm_up(operation, size, element):
                    self._tell(left_out={"operation": operation, "size_bytes": size, "reason": reason})
                    break
        for number in range(1, self.spec.passes + 1):
            times = []
            for key, (buffers, calls) in self.cells.items():
                self._tell(at=f"repeat {number} of {self.spec.passes}: {key.split()[0]}")
                dist.barrier(group=self.context.control)
                times.append(timed_s(buffers.call, self.context.device, calls=calls) / calls)
            if times:  # The mean over the ranks goes to the parent.
                summed = torch.tensor(times, dtype=torch.float64)
                dist.all_reduce(summed, group=self.context.control)
                self._tell(**{"pass": dict(zip(self.cells, (summed / self.context.world_size).tolist()))})

    def _warm_up(self, operation: str, size: int, element: torch.dtype) -> str:
        """Prepare one cell; returns why it is left out, with all larger ones."""
        if operation == "send_recv" and self.context.world_size == 1:
            return "a single rank has no peer to send to"
        try:
            buffers = make(operation, size, element, self.context.device)
            timed_s(buffers.call, self.context.device)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if is_out_of_memory(error) or not _NOT_OFFERED.search(str(error)):
                raise
            return f"{self.context.backend} does not offer it for {self.spec.dtype}"
        wrong = self._agreed(wrong_elements(operation, buffers), dist.ReduceOp.SUM)
        once_s = self._agreed(timed_s(buffers.call, self.context.device), dist.ReduceOp.MAX)
        calls = self._calls(once_s)
        if calls == 0:
            return f"the time limit: one call takes {once_s:.3g} s; raise it with --seconds"
        for _ in range(min(self.spec.warm_up, calls)):
            buffers.call()
        self.cells[key_of(operation, size)] = (buffers, calls)
        count = size // element.itemsize
        cell = {"operation": operation, "size_bytes": size, "count": count, "calls": calls}
        self._tell(cell={**cell, "wrong_elements": int(wrong)})
        return ""

    def _calls(self, once_s: float) -> int:
        """Return the number of calls per figure, so that all passes of this cell fit into its share of the time."""
        left_s = self.spec.seconds - self.spent_s
        cells = max(1, len(self.spec.operations) * len(self.spec.sizes_bytes) - len(self.cells))
        # The smallest sizes take next to nothing, so an equal share of what is left suits the larger ones too.
        fitting = int(left_s / cells / self.spec.passes / max(once_s, 1e-9))
        if fitting < 1 and once_s * self.spec.passes > left_s:
            return 0
        calls = max(1, min(self.spec.calls, fitting))
        self.spent_s += once_s * (calls * self.spec.passes + self.spec.warm_up)
        return calls

    def _agreed(self, value: float, how: Any) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=how, group=self.context.control)
        return float(tensor)

    def _tell(self, **line: Any) -> None:
        if self.context.rank == 0:
            send_record(**line)


def main() -> None:
    """Take part in one launch."""
    spec = loads(sys.argv[1])
    context = join(meet(_START_S), spec.device, spec.backend, spec.timeout_s)
    Bench(spec, context).run()
    dist.barrier(group=context.control)


if __name__ == "__main__":
    run_child(main)
