"""Definitions of all metrics, and model FLOPs utilization with the peak that it refers to."""

import re
from typing import Any

from diagnostics.contract.files import table_beside

_TABLE: dict[str, Any] = table_beside(__file__)
DEFINITIONS: dict[str, str] = _TABLE["definitions"]  # Name of a metric -> one sentence with its unit.
BOOKKEEPING: tuple[str, ...] = tuple(_TABLE["bookkeeping"])  # Keys of a record that are not plotted.
FORMULA = "mfu = tokens_per_s * flops_per_token / (world_size * peak_flops)"

_VENDOR = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|AMD)\s+", re.IGNORECASE)


def published_peaks(device_name: str) -> tuple[dict[str, float], str]:
    """Return the published dense peaks of one device in FLOP/s, and their source; empty and "" for an unknown device.

    They are by dtype of the matrix products: float32, tf32, bfloat16, float16.
    """
    short = device_name.strip()
    while (without := _VENDOR.sub("", short)) != short:
        short = without
    for row in _TABLE["peaks"]:
        if re.fullmatch(row["device"], short):
            printed = {dtype: row.get(dtype, row.get("half")) for dtype in ("bfloat16", "float16")}
            printed |= {dtype: row.get(dtype) for dtype in ("tf32", "float32")}
            peaks = {dtype: peak * 1e12 for dtype, peak in printed.items() if peak is not None}
            return peaks, _TABLE["sheets"][row["sheet"]]
    return {}, ""


def peak_flops(device_name: str, dtype: str) -> tuple[float | None, str]:
    """Return the published dense peak of one device in FLOP/s and a description, or None and the reason.

    The products are of float32, tf32, bfloat16 or float16.
    """
    peaks, _ = published_peaks(device_name)
    if not peaks:
        return None, f"no published peak is known for the device {device_name}"
    if dtype not in peaks:
        return None, f"{device_name} has no published peak for {dtype}"
    peak = peaks[dtype]
    return peak, f"{device_name}, {dtype} dense, {peak / 1e12:g} TFLOP/s per device (data sheet)"


def model_flops_utilization(
    tokens_per_s: float, flops_per_token: int | None, world_size: int, peak: float | None, peak_reason: str
) -> tuple[float | None, str]:
    """Return MFU as a fraction of 1, with formula and peak (Chowdhery et al. 2022, PaLM, appendix B), or None and why.

    `flops_per_token` are the training FLOPs that the model declares, if it does; `peak` is that of one device in
    FLOP/s, and `peak_reason` describes it, or why it is unknown.
    """
    if peak is None:
        return None, peak_reason
    if flops_per_token is None:
        return None, "the model does not say its FLOPs per token (method flops_per_token)"
    return tokens_per_s * flops_per_token / (world_size * peak), f"{FORMULA}; {peak_reason}"
