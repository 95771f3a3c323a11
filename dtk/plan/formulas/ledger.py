"""Bytes in use while a step is walked through: what is held, the highest use, and what it consisted of then."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dtk.plan.prediction import Category, Memory


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that is freed when its last holder lets go."""

    ledger: "Ledger"
    category: Category
    size_bytes: int
    holders: int = 1
    copies: int = 1
    """How many like it are freed with it: those of blocks that were not walked, too."""

    def hold(self) -> "Buffer":
        """One more holder."""
        self.holders += 1
        return self

    def drop(self) -> None:
        """One holder less; the last one frees the memory."""
        self.holders -= 1
        if self.holders == 0:
            self.ledger.change(self.category, -self.copies * self.size_bytes)
            if slack := self.ledger.slack_bytes(self.size_bytes):
                self.ledger.change("allocator slack", -self.copies * slack)


class Ledger:
    """The memory of one rank.

    Args:
        granularity_bytes: what the allocator rounds every buffer up to.
    """

    def __init__(self, granularity_bytes: int = 1) -> None:
        self.granularity_bytes = granularity_bytes
        self.region = "forward"
        self.in_use: Counter[Category] = Counter()
        self.total_bytes = 0
        self.peak_bytes = 0
        self.peak_region = self.region
        self.at_peak: dict[Category, int] = {}
        self.by_region: dict[str, int] = {}

    def allocate(self, category: Category, size_bytes: int) -> Buffer:
        """Take memory; the caller is its first holder."""
        if slack := self.slack_bytes(size_bytes):
            self.in_use["allocator slack"] += slack
            self.total_bytes += slack
        self.change(category, size_bytes)
        return Buffer(self, category, size_bytes)

    def slack_bytes(self, size_bytes: int) -> int:
        """Return the bytes that rounding adds to a buffer."""
        return -size_bytes % self.granularity_bytes

    def change(self, category: Category, size_bytes: int) -> None:
        """Take or give back memory, and note the highest use."""
        self.in_use[category] += size_bytes
        self.total_bytes += size_bytes
        if self.total_bytes > self.by_region.get(self.region, -1):
            self.by_region[self.region] = self.total_bytes
        if self.total_bytes > self.peak_bytes:
            self.peak_bytes = self.total_bytes
            self.peak_region = self.region
            self.at_peak = dict(self.in_use)

    def copy(self, buffer: Buffer, times: int) -> None:
        """Take so many more of a buffer; all are freed together. The highest use is not noted."""
        more = times * buffer.copies
        buffer.copies += more
        slack = self.slack_bytes(buffer.size_bytes)
        self.shift({buffer.category: buffer.size_bytes, "allocator slack": slack}, more)

    def shift(self, delta_bytes: Mapping[Category, int], times: int) -> None:
        """Take or give back so many times so much, without noting the highest use."""
        for category, size in delta_bytes.items():
            self.in_use[category] += times * size
            self.total_bytes += times * size

    def memory(self, rank: int, host_bytes: int, file_bytes: int = 0, paged_bytes: int = 0) -> Memory:
        """Return the highest use so far as the memory of this rank."""
        at_peak = {category: size for category, size in self.at_peak.items() if size}
        return Memory(rank, at_peak, self.peak_region, self.by_region, host_bytes, file_bytes, paged_bytes)

    def enter(self, region: str) -> None:
        """Continue in another region of the step."""
        self.region = region
        self.change("temporaries", 0)
