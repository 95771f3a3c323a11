"""Simulates steps of several ranks on accelerators and writes them as Kineto traces.

Host, compute stream and communication stream of each rank are clocks (us). A collective starts on a rank when it
arrives there and ends on all ranks together, after the last arrival plus its transfer.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MAIN, AUTOGRAD, COMPUTE, COMMUNICATION = 11, 12, 7, 20
"""Host threads, then streams."""
LATENCY_US = 3.0
BASE_NS = 1_700_000_000_000_000_000
Per = Callable[[int], float]
"""A duration for each rank."""


@dataclass
class Clock:
    """When each is free again, us."""

    host: float = 1000.0
    compute: float = 0.0
    communication: float = 0.0


@dataclass
class Simulator:
    """One job. Its verbs happen on every rank, in program order."""

    ranks: int = 4
    launch_us: float | Per = 8.0
    blocking: bool = False
    """Every launch waits for its kernel."""
    clocks: list[Clock] = field(default_factory=list)
    events: list[list[dict[str, Any]]] = field(default_factory=list)
    thread: int = MAIN
    correlation: int = 100
    sequence: int = 0

    def __post_init__(self) -> None:
        self.clocks = [Clock() for _ in range(self.ranks)]
        self.events = [[] for _ in range(self.ranks)]

    def _event(self, rank: int, cat: str, name: str, start: float, duration: float, **args: Any) -> None:
        where = {"pid": 500 + rank, "tid": self.thread}
        if "stream" in args:
            where = {"pid": rank, "tid": args["stream"]}
            args["device"] = rank
        self.events[rank].append(
            {"ph": "X", "cat": cat, "name": name, **where, "ts": start, "dur": duration, "args": args}
        )

    def _launch(self, rank: int, name: str) -> float:
        """Launch a kernel from the host and return its earliest start on the device."""
        clock = self.clocks[rank]
        cost = self.launch_us(rank) if callable(self.launch_us) else self.launch_us
        start, duration = clock.host, cost * 0.6
        self._event(rank, "cuda_runtime", name, start, duration, correlation=self.correlation)
        clock.host += cost
        return start + duration + LATENCY_US

    def _block(self, rank: int, end: float) -> None:
        """Let the launch that was issued last return only when its kernel is over."""
        launch = next(event for event in reversed(self.events[rank]) if event["cat"] == "cuda_runtime")
        launch["dur"] = max(launch["dur"], end + 1 - launch["ts"])
        self.clocks[rank].host = max(self.clocks[rank].host, end + 2)

    def kernel(self, duration: float | Per, name: str = "ampere_bf16_s16816gemm", stream: int = COMPUTE) -> None:
        """One kernel on the compute stream; in backward from within an operation of autograd."""
        for rank, clock in enumerate(self.clocks):
            length = duration(rank) if callable(duration) else duration
            begun = clock.host
            start = max(self._launch(rank, "cudaLaunchKernel"), clock.compute)
            self._event(rank, "kernel", name, start, length, stream=stream, correlation=self.correlation)
            clock.compute = start + length
            if self.blocking:
                self._block(rank, clock.compute)
            if self.thread == AUTOGRAD:
                title = "autograd::engine::evaluate_function: MmBackward0"
                self._event(rank, "cpu_op", title, begun, clock.host - begun)
            else:
                self._event(rank, "cpu_op", "aten::mm", begun, clock.host - begun)
        self.correlation += 1

    def collective(
        self,
        op: str,
        size_bytes: int,
        transfer: float,
        *,
        group: str = "0",
        same_stream: bool = False,
        dtype: str = "Float",
    ) -> list[float]:
        """Issue one; it needs what was computed so far. Returns when it ends."""
        stream = COMPUTE if same_stream else COMMUNICATION
        self.sequence += 1
        arrivals, begun = [], [clock.host for clock in self.clocks]
        for rank, clock in enumerate(self.clocks):
            ready = max(self._launch(rank, "cudaLaunchKernelExC"), clock.compute)
            arrivals.append(ready if same_stream else max(ready, clock.communication))
        end = max(arrivals) + transfer
        width = {"Float": 4, "Int": 4, "BFloat16": 2}[dtype]
        for rank, clock in enumerate(self.clocks):
            args = {
                "Collective name": {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}.get(
                    op, op.replace("_", "")
                ),
                "In msg nelems": size_bytes // width,
                "Out msg nelems": size_bytes // width,
                "Group size": self.ranks,
                "dtype": dtype,
                "Process Group Name": group,
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(self.ranks))),
                "Seq": self.sequence,
            }
            link = {"stream": stream, "correlation": self.correlation}
            self._event(rank, "kernel", f"NCCL {op}", arrivals[rank], end - arrivals[rank], **link, **args)
            shapes = {"Input Dims": [[size_bytes // width]], "Input type": [dtype.lower()]}
            self._event(rank, "user_annotation", f"nccl:{op}", begun[rank], clock.host - begun[rank] - 0.2, **shapes)
            self._event(rank, "cpu_op", "record_param_comms", begun[rank] - 0.5, clock.host - begun[rank] + 0.4, **args)
            self._event(rank, "gpu_user_annotation", f"nccl:{op}", arrivals[rank], end - arrivals[rank], **link)
            if self.thread == AUTOGRAD:
                title = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                self._event(rank, "cpu_op", title, begun[rank] - 0.8, clock.host - begun[rank] + 0.8)
            if same_stream:
                clock.compute = end
            else:
                clock.communication = end
            if self.blocking:
                self._block(rank, end)
        self.correlation += 1
        return [end] * self.ranks

    def copy(self, duration: float | Per, size_bytes: int, kind: str = "HtoD (Pageable -> Device)") -> None:
        """Copy on the compute stream, as `tensor.to(device)` does; from pageable memory the host waits for it."""
        for rank, clock in enumerate(self.clocks):
            length = duration(rank) if callable(duration) else duration
            start = max(self._launch(rank, "cudaMemcpyAsync"), clock.compute)
            link = {"stream": COMPUTE, "correlation": self.correlation, "bytes": size_bytes}
            self._event(rank, "gpu_memcpy", f"Memcpy {kind}", start, length, **link)
            clock.compute = start + length
            if "Pageable" in kind:
                clock.host = max(clock.host, clock.compute + 2)
        self.correlation += 1

    def wait(self, ends: list[float]) -> None:
        """Make the compute stream wait for a collective."""
        for clock, end in zip(self.clocks, ends):
            clock.compute = max(clock.compute, end)

    def host(self, duration: float | Per, mark: str = "", op: str = "", call: str = "", function: str = "") -> None:
        """Occupy the host with other work: an annotation, an operation, a call of the runtime, a Python function."""
        for rank, clock in enumerate(self.clocks):
            length = duration(rank) if callable(duration) else duration
            for cat, name in (
                ("user_annotation", mark), ("cpu_op", op), ("cuda_runtime", call), ("python_function", function),
            ):  # fmt: skip
                if name:
                    self._event(rank, cat, name, clock.host, length)
            clock.host += length

    def drain(self, op: str = "aten::item") -> None:
        """Make the host wait for the compute stream."""
        for rank, clock in enumerate(self.clocks):
            end = max(clock.host, clock.compute) + 2
            self._event(rank, "cpu_op", op, clock.host, end - clock.host + 2)
            self._event(rank, "cuda_runtime", "cudaStreamSynchronize", clock.host + 1, end - clock.host, correlation=0)
            clock.host = end + 2

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Annotate what the host does meanwhile."""
        starts = [clock.host for clock in self.clocks]
        yield
        thread, self.thread = self.thread, MAIN
        for rank, start in enumerate(starts):
            self._event(rank, "user_annotation", name, start, self.clocks[rank].host - start)
        self.thread = thread

    def header(self, rank: int) -> dict[str, Any]:
        """Return what stands before the events of a rank's trace."""
        ranks = list(range(self.ranks))
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": self.ranks, "ranks": ranks}
        info = {"backend": "nccl", "rank": rank, "world_size": self.ranks, "pg_count": 1, "pg_config": [group]}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": n, "name": "NVIDIA H100"} for n in ranks],
            "distributedInfo": info,
        }

    def files(self) -> dict[str, str]:
        """Return one trace per rank."""
        return {
            f"rank{rank}.json": json.dumps(
                {**self.header(rank), "baseTimeNanoseconds": BASE_NS, "traceEvents": list(map(rounded, events))}
            )
            for rank, events in enumerate(self.events)
        }


def rounded(event: dict[str, Any], digits: int = 3) -> dict[str, Any]:
    """Return an event whose start and end are whole nanoseconds (or microseconds, with 0 digits)."""
    start = round(event["ts"], digits)
    length = max(0.0, round(event["ts"] + event["dur"] - start, digits))
    return {**event, "ts": start, "dur": length} if digits else {**event, "ts": int(start), "dur": int(length)}
