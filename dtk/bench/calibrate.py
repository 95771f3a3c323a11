"""Measures this machine for `hardware=measured`: starts the ranks of `calibrate_rank` and fits their figures."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diagnostics.analysis.processes import usable_cores
from diagnostics.contract.formatting import bytes_text, command, counted, seconds_text
from diagnostics.report.document import Document, Field, Fields
from dtk.bench.measure import POLL_S
from dtk.errors import DtkError
from dtk.launch.children import Children, culprit, local_ranks
from dtk.plan.timing.hardware import MEASURED, Hardware, measured_path, store_hardware

RANKS = 2  # The fewest between which there is a link.
SECONDS = 8.0  # Chosen: measuring time besides the start of the ranks; less makes the figures noisier.
_PATIENCE_S = 90.0  # Chosen: a machine that needs longer to start the ranks is too busy to be measured.
_ADAPTER_BYTES_PER_S = 1.25e9  # 10 Gbit/s Ethernet: assumed, as one machine cannot measure it.
_ADAPTER_LATENCY_S = 50e-6  # Of TCP between two hosts of a rack: assumed too.


def calibrate(
    *, on_cpu: bool = False, seconds: float = SECONDS, show: Callable[[str], None] = lambda line: None
) -> Hardware:
    """Measure with all ranks working simultaneously, as in training, and store the result as `measured`.

    `on_cpu` ignores CUDA devices, of which each has at most one rank; `seconds` are divided over all figures.

    Return the hardware that was stored in `measured_path()`; DtkError if a rank failed, or it cannot be written.
    """
    import torch

    devices = 0 if on_cpu else torch.cuda.device_count()
    device, ranks = ("cuda", min(RANKS, devices)) if devices else ("cpu", RANKS)
    show(f"starting {counted(ranks, 'rank')} on {device}")
    hardware = _hardware(device, ranks, _run(device, ranks, seconds, show))
    store_hardware(hardware, measured_path())
    return hardware


def fit(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit `t = fixed + size * per_byte` by least squares of the relative error, and return both coefficients.

    Relative, as the times span orders of magnitude: else the largest sizes alone decide. Neither can be negative.
    ValueError for fewer than two sizes.
    """
    if len(set(sizes_bytes)) < 2:
        raise ValueError("the fit needs two sizes")
    # Minimise the sum of (fixed / t + per_byte * size / t - 1)^2: normal equations of two unknowns.
    rows = [(1 / t, size / t) for size, t in zip(sizes_bytes, seconds)]
    aa, ab, bb = sum(x * x for x, _ in rows), sum(x * y for x, y in rows), sum(y * y for _, y in rows)
    a, b = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = aa * bb - ab * ab
    fixed, per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if fixed < 0:
        return 0.0, b / bb
    return (a / aa, 0.0) if per_byte < 0 else (fixed, per_byte)


def _run(device: str, ranks: int, seconds: float, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run one measuring process for each rank and return what each measured."""
    threads = str(max(1, usable_cores() // ranks))
    environments = {rank: {**own, "OMP_NUM_THREADS": threads} for rank, own in local_ranks(ranks, 1).items()}
    figures: dict[int, dict[str, Any]] = {}
    ends_s = time.monotonic() + seconds + _PATIENCE_S
    with Children(["-m", "dtk.bench.calibrate_rank", device, str(seconds)], environments) as children:
        # A failed rank leaves the others blocked in a collective.
        while not (children.ended or children.failed()) and time.monotonic() < ends_s:
            for rank, line in children.lines(POLL_S):
                if "at" in line:
                    show(line["at"])
                elif "figures" in line:
                    figures[rank] = line["figures"]
        failed = children.failed()
    if not failed and len(figures) == ranks:
        return [figures[rank] for rank in range(ranks)]
    rank, why = min(set(range(ranks)) - set(figures), default=0), "it took too long"
    if failed:
        first = culprit(failed)
        rank, why = first.rank, first.error or first.ended
    raise DtkError(f"calibration failed on rank {rank}", why, "try again when the machine is idle")


def _hardware(device: str, ranks: int, figures: Sequence[Mapping[str, Any]]) -> Hardware:
    """Build the hardware description from the slowest rank's rates and the line fitted to the all_reduce times."""
    on_cpu = device == "cpu"
    threads = figures[0]["threads"]
    each = f"{counted(threads, 'thread')} of {figures[0]['cpu']}" if on_cpu else figures[0]["device"]
    how = f"measured on {figures[0]['host']}: {counted(ranks, 'rank')} at once, {each} each"
    rates = {dtype: min(rank["matmul_flops"][dtype] for rank in figures) for dtype in figures[0]["matmul_flops"]}
    latency_s, bytes_per_s, link_source = _links(ranks, figures, how)
    assumed = "assumption: not measured; one network adapter of 10 Gb/s shared by the devices of a node"
    sources = dict.fromkeys(("matmul_flops", "memory_bytes", "devices_per_node"), how)
    sources |= {"memory_bytes_per_s": f"{how}; copies", "memory_fraction": how, "link_fraction": how}
    sources |= dict.fromkeys(("intra_node_bytes_per_s", "intra_node_latency_s"), link_source)
    sources |= dict.fromkeys(("inter_node_bytes_per_s", "inter_node_latency_s"), assumed)
    return Hardware(
        name=MEASURED,
        device=None if on_cpu else figures[0]["device"],
        backend="gloo" if on_cpu else "nccl",
        devices_per_node=figures[0]["devices"],
        memory_bytes=min(rank["memory_bytes"] for rank in figures),
        peak_flops={},
        matmul_flops=rates,
        memory_bytes_per_s=min(rank["copy_bytes_per_s"] for rank in figures),
        memory_fraction=1.0,
        intra_node_bytes_per_s=bytes_per_s,
        intra_node_latency_s=latency_s,
        inter_node_bytes_per_s=min(bytes_per_s, _ADAPTER_BYTES_PER_S / figures[0]["devices"]),
        inter_node_latency_s=max(latency_s, _ADAPTER_LATENCY_S),
        link_fraction=1.0,
        sources=sources,
    )


def _links(ranks: int, figures: Sequence[Mapping[str, Any]], how: str) -> tuple[float, float, str]:
    """Latency and bandwidth of one step of a ring all_reduce (see `alpha_beta.algorithm_s`), and their source."""
    if ranks == 1:
        why = "assumption: one rank has no links to measure; the network's figures"
        return _ADAPTER_LATENCY_S, _ADAPTER_BYTES_PER_S, why
    times = {int(size): zip(*(rank["all_reduce_s"][size] for rank in figures)) for size in figures[0]["all_reduce_s"]}
    sizes, medians = list(times), [statistics.median(map(max, calls)) for calls in times.values()]
    fixed_s, per_byte_s = fit(sizes, medians)
    steps = 2 * (ranks - 1)
    error = statistics.median(abs(fixed_s + size * per_byte_s - s) / s for size, s in zip(sizes, medians))
    source = f"{how}; all_reduce of {sizes[0]} to {sizes[-1]} bytes, the line is off by {error:.0%} in the median"
    latency_s = max(fixed_s / steps, 1e-9)
    return latency_s, steps / ranks / per_byte_s if per_byte_s else math.inf, source


def document(hardware: Hardware) -> Document:
    """Return the document of what was measured and stored."""
    rates = ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in hardware.matmul_flops.items())
    link = hardware.intra_node
    rows = (
        Field("matmul", rates),
        Field("memory", f"{bytes_text(hardware.memory_rate)}/s, {bytes_text(hardware.memory_bytes)} per rank"),
        Field("link", f"{bytes_text(link.bytes_per_s)}/s, {seconds_text(link.latency_s)} per step"),
        Field("kept in", str(measured_path())),
        Field("next", command("plan", "model=gpt2_tiny", "hardware=measured")),
    )
    return Document("Calibration", "", (Fields(rows),))


def as_json(hardware: Hardware) -> dict[str, Any]:
    """Return the same as plain values."""
    return {**dataclasses.asdict(hardware), "path": str(measured_path())}
