"""Division of a global batch into samples per rank and micro-batches. No other module of dtk divides a batch."""

from dataclasses import dataclass

from diagnostics.contract.mesh import divisors

LARGEST_CHOSEN = 4
"""Upper limit of an automatic micro-batch size: small enough for a laptop; accumulation covers the rest."""
_SHOWN = 4  # Number of valid micro-batch sizes that an error lists.


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A global batch divided over data-parallel ranks and micro-batches."""

    global_batch_size: int
    """Samples of one optimizer step over all ranks."""
    micro_batch_size: int
    """Samples per rank in one forward."""
    dp_size: int
    """Number of data-parallel ranks."""

    @property
    def is_whole(self) -> bool:
        """Whether every rank has the same whole number of micro-batches, at least one."""
        return self.global_batch_size > 0 and self.global_batch_size % self._round == 0

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of each rank in one optimizer step."""
        return self.global_batch_size // self._round

    @property
    def samples_per_rank(self) -> int:
        """Samples of each data-parallel rank in one optimizer step, rounded down."""
        return self.global_batch_size // self.dp_size

    def positions(self, dp_rank: int, micro_step: int) -> slice:
        """Return a rank's `micro_batch_size` positions of the global batch in one micro-step.

        Micro-steps are outermost, so over all ranks and micro-steps the slices tile the global batch.
        """
        start = (micro_step * self.dp_size + dp_rank) * self.micro_batch_size
        return slice(start, start + self.micro_batch_size)

    def micro_batch_sizes(self) -> list[int]:
        """Return every micro-batch size that divides the batch evenly, in ascending order; empty if none does."""
        share, rest = divmod(self.global_batch_size, self.dp_size)
        return [] if rest or not share else divisors(share)

    def micro_batch_size_of(self, steps: int) -> int | None:
        """Return the size with which every rank has this many micro-batches, or None if there is none."""
        size, rest = divmod(self.global_batch_size, self.dp_size * steps)
        return None if rest or not size else size

    def chosen_micro_batch_size(self, least_steps: int = 1) -> int | None:
        """Return the largest valid size up to `LARGEST_CHOSEN`, or None if the ranks cannot divide the batch evenly.

        If the batch is large enough, each rank has at least `least_steps` micro-batches.
        """
        sizes = [size for size in self.micro_batch_sizes() if size <= LARGEST_CHOSEN]
        enough = (size for size in sizes if self.samples_per_rank // size >= least_steps)
        return max(enough, default=min(sizes, default=None))

    def nearest_micro_batch_sizes(self) -> list[int]:
        """Return the valid sizes nearest to the configured one, in ascending order."""
        nearest = sorted(self.micro_batch_sizes(), key=lambda size: abs(size - self.micro_batch_size))
        return sorted(nearest[:_SHOWN])

    def nearest_global_batch_sizes(self) -> list[int]:
        """Return the nearest valid global batch sizes below and above the configured one, with its micro-batch size."""
        below = self.global_batch_size // self._round * self._round
        return [size for size in (below, below + self._round) if size]

    def fewer_ranks(self) -> int:
        """Return the largest number of data-parallel ranks, at most `dp_size`, over which the global batch divides."""
        return max(n for n in range(1, self.dp_size + 1) if self.global_batch_size % n == 0)

    @property
    def _round(self) -> int:
        """Samples of all ranks in one micro-step; a micro-batch size not chosen yet counts as 1."""
        return max(1, self.micro_batch_size) * self.dp_size


def evaluation_positions(size: int, dp_rank: int, dp_size: int) -> range:
    """Return the held-out samples of a data-parallel rank: every `dp_size`-th of `size`."""
    return range(dp_rank, size, dp_size)


def evaluation_rounds(size: int, micro_batch_size: int, dp_size: int) -> int:
    """Return the number of micro-batches until all `size` samples are evaluated, the same on every rank."""
    return -(-size // (dp_size * micro_batch_size))
