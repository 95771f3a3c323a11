"""Builds the document of a calibration: the figures, where they are kept, and what to type next."""

import dataclasses
from typing import Any

from diagnostics.contract.formatting import bytes_text, seconds_text
from diagnostics.contract.invocation import command
from diagnostics.report.document import Document, Field, Fields
from dtk.plan.timing.hardware import Hardware, measured_path


def document(hardware: Hardware) -> Document:
    """Return the document of what was measured and stored."""
    rates = ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in hardware.matmul_flops.items())
    link = hardware.intra_node
    rows = (
        Field("matmul", rates),
        Field("memory", f"{bytes_text(hardware.memory_rate)}/s, {bytes_text(hardware.memory_bytes)} a rank"),
        Field("link", f"{bytes_text(link.bytes_per_s)}/s, {seconds_text(link.latency_s)} a step"),
        Field("kept in", str(measured_path())),
        Field("next", command("plan", "strategy=ddp", "model=gpt2_tiny", "hardware=measured")),
    )
    return Document("Calibration", "", (Fields(rows),))


def as_json(hardware: Hardware) -> dict[str, Any]:
    """Return the same as plain values."""
    return {**dataclasses.asdict(hardware), "path": str(measured_path())}
