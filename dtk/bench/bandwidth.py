"""Bandwidths as nccl-tests define them (doc/PERFORMANCE.md; `*GetCollByteCount`, `*GetBw` in src/*.cu)."""

import re
from dataclasses import dataclass

from diagnostics.contract.files import table_beside
from dtk.errors import DtkError

GB = 1e9  # nccl-tests uses powers of ten here.
ALIGNED_BYTES = 16  # The share of one rank is a multiple of this where the buffer is divided over the ranks.
LARGEST_BYTES = 1 << 40  # No device has this much memory, so a larger size is a typing error.


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that is timed."""

    name: str
    in_place: bool
    """Whether the result overwrites the input, as in torch.distributed."""
    divided: bool
    """Whether the size is the total of all ranks' shards."""
    size_is: str
    factor_is: str

    def factor(self, world_size: int) -> float:
        """Return the bus bandwidth over the algorithm bandwidth."""
        if self.name == "send_recv":
            return 1.0
        rounds = 2 if self.name == "all_reduce" else 1
        return rounds * (world_size - 1) / world_size

    def fitted(self, size_bytes: int, world_size: int, element_bytes: int) -> int:
        """Return the size that is actually sent: whole elements, in equal aligned shards if the data is divided."""
        unit = world_size * max(ALIGNED_BYTES, element_bytes) if self.divided else element_bytes
        return max(1, size_bytes // unit) * unit


_TABLE = table_beside(__file__)
OPERATIONS = {name: Operation(name, **row) for name, row in _TABLE["operations"].items()}
_OF_OPERATIONS = {
    "factors": ", ".join(f"{name} {operation.factor_is}" for name, operation in OPERATIONS.items()),
    "sizes": "; ".join(f"{name}: {operation.size_is}" for name, operation in OPERATIONS.items()),
}
DEFINITIONS: dict[str, str] = {name: text.format_map(_OF_OPERATIONS) for name, text in _TABLE["definitions"].items()}
DTYPES: dict[str, int] = _TABLE["dtype_bytes"]  # Name of the element type -> bytes.
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}  # Powers of two, as nccl-tests reads its sizes.
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b|ytes)?", re.IGNORECASE)


def algorithm_bandwidth(size_bytes: float, seconds: float) -> float:
    """Return the bandwidth in GB/s."""
    return size_bytes / seconds / GB


def bus_bandwidth(operation: str, size_bytes: float, seconds: float, world_size: int) -> float:
    """Return the bandwidth in GB/s."""
    return algorithm_bandwidth(size_bytes, seconds) * OPERATIONS[operation].factor(world_size)


def size_of(text: str) -> int:
    """Return the bytes of `4096`, `64K`, `1MiB`, `8M`, in powers of two as nccl-tests do; DtkError if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << _UNITS[match[2].lower()] if match else 0
    if not 0 < size <= LARGEST_BYTES:
        raise DtkError(f"{text!r} is not a message size", fix="write bytes, or 64K, 8M, 1G")
    return size


def sizes(least: int, most: int, factor: int) -> list[int]:
    """Return `least`, times `factor` (2 or more) and so on, up to `most`; DtkError if that is no range."""
    if least > most:
        raise DtkError("the smallest size is larger than the largest", fix="use --min-size below --max-size")
    series = [least]
    while series[-1] * factor <= most:
        series.append(series[-1] * factor)
    return series
