"""Draws a step of a simulated job as text, as docs/causes.md shows it: host, compute, communication of each rank."""

from collections.abc import Iterator
from typing import Any

from tests.trace_simulator import AUTOGRAD, COMPUTE, MAIN, Simulator

WIDTH = 72
"""Characters of a step."""
_LEAST = 0.35
"""Of the time of a character, below which it is idle."""
_EMPTY = 0.9
"""Of a row, from which on it is left out: a host that launched long before."""
_COLLECTIVES = {"all_reduce": "Rr", "all_gather": "Gg", "reduce_scatter": "Ss"}
_KEYS = {
    "f": "forward", "b": "backward", "o": "optimizer", "c": "copy", "R": "all_reduce", "G": "all_gather",
    "S": "reduce_scatter", "l": "launches", "w": "waits for the device", "d": "data loader", "#": "graph search",
}  # fmt: skip
Event = dict[str, Any]
Span = tuple[float, float, str]


def draw(sim: Simulator, ranks: tuple[int, ...]) -> str:
    """Return the drawing of the second step, from the end of one optimizer to the end of the next.

    Neighbouring collectives of one kind differ in case; a character stands for what takes most of its time.
    """
    spans = {rank: _spans(sim.events[rank]) for rank in ranks}
    ends = sorted(stop for _, stop, letter in spans[ranks[0]]["compute"] if letter == "o")
    per_step = len(ends) // 3
    begin, end = ends[per_step - 1], ends[2 * per_step - 1]
    rows = {(rank, name): _row(own, begin, end) for rank in ranks for name, own in spans[rank].items()}
    rows = {key: row for key, row in rows.items() if row.count(".") < _EMPTY * WIDTH}
    letters = {letter if letter in _KEYS else letter.upper() for row in rows.values() for letter in row}
    keys = ", ".join(f"{letter} {text}" for letter, text in _KEYS.items() if letter in letters)
    lines = [f"rank {rank} {name:<14}{row}" for (rank, name), row in rows.items()]
    head = f"one step of {(end - begin) / 1000:.0f} ms: {keys}, . idle"
    return "\n".join([head, *lines]) + "\n"


def _spans(events: list[Event]) -> dict[str, list[Span]]:
    kernels = sorted(
        (item for item in events if item["cat"] in ("kernel", "gpu_memcpy")), key=lambda value: value["ts"]
    )
    rows: dict[str, list[Span]] = {"host": [], "compute": [], "communication": []}
    rows["host"] = list(
        _host(events, {kernel["args"]["correlation"]: kernel["ts"] + kernel["dur"] for kernel in kernels})
    )
    threads = {item["args"]["correlation"]: item["tid"] for item in events if item["cat"] == "cuda_runtime"}
    for event in kernels:
        collective = next((pair for op, pair in _COLLECTIVES.items() if event["name"] == f"NCCL {op}"), "")
        previous = [letter for _, _, letter in rows["communication"][-1:]]
        letter = collective and next(name for name in collective if [name] != previous)
        if not collective:
            letter = {MAIN: "f", AUTOGRAD: "b"}[threads[event["args"]["correlation"]]]
            letter = "c" if event["cat"] == "gpu_memcpy" else "o" if "multi_tensor" in event["name"] else letter
        row = "compute" if event["args"]["stream"] == COMPUTE else "communication"
        rows[row].append((event["ts"], event["ts"] + event["dur"], letter))
    return rows


def _host(events: list[Event], kernel_ends: dict[int, float]) -> Iterator[Span]:
    """Yield what the host does; a launch that returns after its kernel has ended waits for the device."""
    for event in events:
        start, stop = event["ts"], event["ts"] + event["dur"]
        if event["cat"] == "cuda_runtime":
            waits = "Synchronize" in event["name"] or stop > kernel_ends.get(event["args"]["correlation"], stop)
            yield start, stop, "w" if waits else "l"
        elif event["cat"] == "user_annotation" and "DataLoader" in event["name"]:
            yield start, stop, "d"
        elif event["cat"] == "cpu_op" and "search_unused" in event["name"]:
            yield start, stop, "#"


def _row(spans: list[Span], begin: float, end: float) -> str:
    cell, row = (end - begin) / WIDTH, ""
    for number in range(WIDTH):
        low, high = begin + number * cell, begin + (number + 1) * cell
        times: dict[str, float] = {}
        for start, stop, letter in spans:
            if (covered := min(stop, high) - max(start, low)) > 0:
                times[letter] = times.get(letter, 0.0) + covered
        row += max(times, key=lambda letter: times[letter]) if sum(times.values()) >= _LEAST * cell else "."
    return row
