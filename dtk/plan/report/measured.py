"""What calibration found, as text or JSON."""

import dataclasses
import json
from pathlib import Path

from diagnostics.contract.formatting import bytes_text
from diagnostics.contract.invocation import command
from dtk.plan.formatting import seconds_text
from dtk.plan.timing.hardware import Hardware


def render(found: Hardware, path: Path, *, as_json: bool) -> str:
    """The figures, where they are kept, and what to type next.

    Args:
        found: what was measured.
        path: where it was stored.
        as_json: one JSON object instead of text.
    """
    if as_json:
        plain = dataclasses.asdict(found)
        return json.dumps({**plain, "path": str(path)}, indent=2, default=dict) + "\n"
    rates = ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in found.matmul_flops.items())
    link = found.intra_node
    rows = (
        ("matmul", rates),
        ("memory", f"{bytes_text(found.memory_rate)}/s, {bytes_text(found.memory_bytes)} a rank"),
        ("link", f"{bytes_text(link.bytes_per_s)}/s, {seconds_text(link.latency_s)} a step"),
        ("kept in", str(path)),
        ("next", command("plan", "strategy=ddp", "model=gpt2_tiny", "hardware=measured")),
    )
    return "".join(f"{name:<9}{value}\n" for name, value in rows)
