"""Communication hooks of DistributedDataParallel that mark and compress gradient buckets. Independent of strategies."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from diagnostics.contract.grouping import grouped
from dtk.parallel.collectives import all_gather_single
from dtk.parallel.compression import MIN_COMPRESSION_RATE, factor_rank, kept
from dtk.parallel.int8 import Blocks, dequantize, leave_rounding, quantize, total
from dtk.parallel.regions import communication

POWERSGD_START = 2  # Steps in which PowerSGD sends whole gradients: the minimum that the library allows.
LARGEST_INDEX = 2**31  # Elements of a parameter that TopK can index with 4 bytes.


class ByParameter:
    """A flat float32 tensor with a segment for each parameter: buckets change, parameters do not."""

    def __init__(self, parameters: Sequence[nn.Parameter], sizes: Sequence[int]) -> None:
        self.flat = torch.zeros(sum(sizes), device=parameters[0].device)
        self._parts = dict(zip(parameters, torch.split(self.flat, list(sizes)), strict=True))

    def of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the segments of these parameters, views of `flat`."""
        return [self._parts[parameter] for parameter in parameters]  # type: ignore[index]


class Hook:
    """The all_reduce of a bucket; base class of hooks that compress it."""

    item_bytes = 4

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def run(self, state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        """Average a bucket over the ranks; the function for `register_comm_hook`."""
        with communication("all_reduce", self.sent_bytes(bucket), "dp"):
            return self.start(bucket)

    def sent_bytes(self, bucket: GradBucket) -> int:
        """Return the bytes that are reduced for a bucket."""
        return self.item_bytes * bucket.buffer().numel()

    def start(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Start averaging a bucket."""
        return allreduce_hook(self.group, bucket)  # type: ignore[arg-type]

    def state(self) -> dict[str, Tensor]:
        """Return the state needed for an exact resume; a checkpoint is loaded into these tensors."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore `state` after a checkpoint was loaded into it."""

    def figures(self) -> dict[str, float]:
        """Return the hook's counters for the metrics record, the same on every rank."""
        return {}


class SixteenBit(Hook):
    """Averages buckets in a 16-bit type. The library's bfloat16 hook supports NCCL only; this one also gloo."""

    item_bytes = 2

    def __init__(self, group: dist.ProcessGroup | None, dtype: torch.dtype) -> None:
        super().__init__(group)
        self.dtype = dtype
        self.infinite: dict[int, Tensor] = {}
        """Number of averages that overflow float16, per bucket, as several buckets may complete at once."""

    def start(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Divide in 16 bits and sum, as the library's hooks do."""
        buffer, number = bucket.buffer(), bucket.index()
        small = buffer.to(self.dtype).div_(dist.get_world_size(self.group))
        work = dist.all_reduce(small, group=self.group, async_op=True)
        assert work is not None

        def finish(_: Any) -> torch.Tensor:
            if self.dtype == torch.float16:
                self.infinite[number] = self.infinite.get(number, 0) + small.isinf().sum()
            return buffer.copy_(small)

        return work.get_future().then(finish)  # type: ignore[no-any-return]

    def figures(self) -> dict[str, float]:
        """Return the number of averages that overflow float16, whose largest number is 65,504."""
        counted = {"float16_overflows": float(sum(map(int, self.infinite.values())))}
        return counted if self.dtype == torch.float16 else {}


class ErrorFeedback(Hook):
    """Compression with error feedback: the error of a step is added to the next gradient before that is compressed.

    Seide et al. 2014, "1-bit stochastic gradient descent". Adding it after compression would make replicas diverge.
    """

    def __init__(self, group: dist.ProcessGroup | None, parameters: Sequence[nn.Parameter], feedback: bool) -> None:
        super().__init__(group)
        self.errors = ByParameter(parameters, [p.numel() for p in parameters]) if feedback else None

    def errors_of(self, bucket: GradBucket) -> list[Tensor]:
        """Return the error of each parameter of a bucket as a flat view; empty without feedback."""
        return [] if self.errors is None else self.errors.of(bucket.parameters())

    def state(self) -> dict[str, Tensor]:
        """Return the errors."""
        return {} if self.errors is None else {"error": self.errors.flat}


class Compressed(ErrorFeedback):
    """Compression by parameter: on CUDA on a stream of its own that overlaps backward, on the CPU backward waits."""

    def __init__(self, group: dist.ProcessGroup | None, parameters: Sequence[nn.Parameter], feedback: bool) -> None:
        super().__init__(group, parameters, feedback)
        self.ranks = dist.get_world_size(group)
        self.stream = torch.cuda.Stream() if parameters[0].is_cuda else None  # type: ignore[no-untyped-call]

    def run(self, state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        """Compress, exchange and average; each collective has its own region."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            future: Future[torch.Tensor] = Future(devices=[self.stream.device] if self.stream else None)
            buffer, errors = bucket.buffer(), self.errors_of(bucket)
            gradients = list(torch.split(buffer, [p.numel() for p in bucket.parameters()]))
            if errors:
                torch._foreach_add_(gradients, errors)
            self.average(buffer, gradients, errors)
            future.set_result(buffer)  # Waiting for the future waits for this stream.
        return future

    def average(self, buffer: Tensor, gradients: list[Tensor], errors: list[Tensor]) -> None:
        """Replace the gradients, flat views of the bucket, by their compressed average, and write the errors if any."""
        raise NotImplementedError


class Int8(Compressed):
    """One byte per element and a scale per block in both directions: all_to_all, float32 average, all_gather."""

    def average(self, buffer: Tensor, gradients: list[Tensor], errors: list[Tensor]) -> None:
        """Average equally many blocks on each rank; only the error of the first rounding is kept."""
        layout, flat = Blocks([len(gradient) for gradient in gradients], self.ranks), buffer.view(1, -1)
        blocks = layout.split(flat)
        packed = quantize(blocks)
        if errors:
            leave_rounding(blocks, packed)
            torch._foreach_copy_(errors, layout.inside(blocks.view(-1)))
        del blocks  # `rounding_bytes` is the peak of what is held at once.
        received = torch.empty_like(packed)
        with communication("all_to_all", packed.nbytes, "dp"):
            dist.all_to_all_single(received, packed, group=self.group)
        mean = total(received, self.ranks).div_(self.ranks)
        del received
        with communication("all_gather", packed.nbytes, "dp"):
            all_gather_single(packed, quantize(mean), group=self.group)
        layout.join(dequantize(packed), flat)


class TopK(Compressed):
    """The largest elements of each parameter by magnitude (Stich et al. 2018, "Sparsified SGD with memory")."""

    ratio = 1.0

    def average(self, buffer: Tensor, gradients: list[Tensor], errors: list[Tensor]) -> None:
        """Gather every rank's values and indices, and sum them in rank order."""
        chosen = [g.abs().topk(kept(len(g), self.ratio), sorted=False).indices for g in gradients]
        values = torch.cat([gradient[index] for gradient, index in zip(gradients, chosen, strict=True)]).float()
        if errors:
            torch._foreach_copy_(errors, gradients)
            for error, index in zip(errors, chosen, strict=True):
                error[index] = 0
        sent = torch.stack([values.view(torch.int32), torch.cat(chosen).int()])
        received = sent.new_empty(self.ranks, *sent.shape)
        with communication("all_gather", received.nbytes, "dp"):
            all_gather_single(received.flatten(0, 1), sent, group=self.group)
        starts = accumulate((len(gradient) for gradient in gradients), initial=0)
        first = torch.cat([torch.full_like(index, start) for index, start in zip(chosen, starts, strict=False)])
        buffer.zero_()
        for rank_values, index in received.unbind():  # The indices of one rank are distinct.
            buffer.index_add_(0, first + index, rank_values.view(torch.float32).to(buffer.dtype))
        buffer /= self.ranks


class PowerSGD(ErrorFeedback):
    """torch's powerSGD_hook (Vogels et al. 2019), whose per-bucket memory is stored per parameter between steps.

    With `feedback` the error of a step is added to the next gradient; `factor_rank` decides what is sent whole.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, parameters: Sequence[nn.Parameter], feedback: bool, rank: int
    ) -> None:
        super().__init__(group, parameters, feedback)
        self.power = powersgd.PowerSGDState(
            group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=POWERSGD_START,
            min_compression_rate=MIN_COMPRESSION_RATE,
            use_error_feedback=feedback,
        )
        # Gloo runs the callbacks of several buckets on own threads in any order: ranks could pair different buckets.
        self.one_at_a_time = dist.get_backend(group) == "gloo"
        self.sizes: dict[Tensor, tuple[int, int, int]] = {}
        """Rows, columns and rank of the factors of each parameter; the rank is 0 if it is sent whole."""
        for p in parameters:
            n, m = len(p), p.numel() // len(p)
            self.sizes[p] = n, m, factor_rank(n, m, rank)
        self.factors = ByParameter(parameters, [m * r for _, m, r in self.sizes.values()])

    def sent_bytes(self, bucket: GradBucket) -> int:
        """Return the bytes of the three reductions that the library chains."""
        if self.power.iter < POWERSGD_START:
            return super().sent_bytes(bucket)
        sizes = (self.sizes[p] for p in bucket.parameters())
        return self.item_bytes * sum((n + m) * r or n * m for n, m, r in sizes)

    def start(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Put this bucket's memory where the library reads it, and store what the library leaves there."""
        power, number = self.power, bucket.index()
        if power.iter < POWERSGD_START:
            return powersgd.powerSGD_hook(power, bucket)
        errors = self.errors_of(bucket)
        if errors:
            power.error_dict[number] = torch.cat(errors)
        # The library's order of the factors.
        by_shape = grouped((self.sizes[p], p) for p in bucket.parameters() if self.sizes[p][2])
        factors = self.factors.of(p for alike in by_shape.values() for p in alike)
        if power.iter > POWERSGD_START and factors:
            rows = sum(n * r * len(alike) for (n, _, r), alike in by_shape.items())
            power.q_memory_dict[number], power.p_memory_dict[number] = torch.cat(factors), factors[0].new_empty(rows)

        def keep(done: Future[torch.Tensor]) -> torch.Tensor:
            for parts, memory in ((errors, power.error_dict), (factors, power.q_memory_dict)):
                if parts:
                    torch._foreach_copy_(parts, list(torch.split(memory.pop(number), [len(part) for part in parts])))
            power.p_memory_dict.pop(number, None)
            return done.value()  # type: ignore[no-any-return]

        future: Future[torch.Tensor] = powersgd.powerSGD_hook(power, bucket).then(keep)
        if self.one_at_a_time:
            future.wait()
        return future

    def state(self) -> dict[str, Tensor]:
        """Return errors, factors and the number of steps."""
        return {**super().state(), "factor": self.factors.flat, "steps": torch.tensor(self.power.iter)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the step count too, so that factors are sent from the first step on."""
        self.power.iter = int(state["steps"])
