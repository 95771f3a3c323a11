"""Small plain PyTorch jobs with nothing wrong, and what each would leave: flight dumps and profiler traces.

Units of equal size, no root around them, gradient accumulation, hand-written updates, evaluation in between, sharded
optimizers: what looks like a fault to whoever counts too simply.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, BLOCKS, STEPS = 128, 4, 3
Profiled = profile | None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 96)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens() -> Tensor:
    return torch.randint(0, 96, (16, 32))


def blocks() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def train(model: nn.Module, optimizer: Any, batch: Callable[[], Tensor], marks: Profiled, micros: int = 1) -> None:
    for _ in range(STEPS):
        for _ in range(micros):
            model(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if marks is not None:
            marks.step()


def ddp(marks: Profiled) -> None:
    model = DistributedDataParallel(Model())
    train(model, torch.optim.AdamW(model.parameters()), tokens, marks)


def ddp_accumulates(marks: Profiled) -> None:
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        for micro in range(4):
            with model.no_sync() if micro < 3 else nullcontext():
                model(tokens()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if marks is not None:
            marks.step()


def ddp_by_hand(marks: Profiled) -> None:
    """Updates of its own, which no optimizer's mark shows."""
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    for _ in range(2 * STEPS):
        model.zero_grad()
        model(tokens()).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        if marks is not None:
            marks.step()


def ddp_validates(marks: Profiled) -> None:
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        model(tokens()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses = torch.stack([model.module(tokens()).square().mean() for _ in range(3)]).mean()
            dist.all_reduce(losses)
        if marks is not None:
            marks.step()


def zero(marks: Profiled) -> None:
    model = DistributedDataParallel(Model())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW), tokens, marks)


def fsdp(model: nn.Module, root: bool = True, **options: Any) -> nn.Module:
    for block in model.blocks if isinstance(model, Model) else model:
        fully_shard(block, **options)
    return fully_shard(model, **options) if root else model


def fsdp_equal(marks: Profiled) -> None:
    """The root has no parameters of its own: all units have the same size."""
    model = fsdp(blocks())
    train(model, torch.optim.AdamW(model.parameters()), lambda: torch.randn(64, WIDTH), marks)


def fsdp_root(marks: Profiled) -> None:
    model = fsdp(Model())
    train(model, torch.optim.AdamW(model.parameters()), tokens, marks)


def fsdp_no_root(marks: Profiled) -> None:
    model = fsdp(Model(), root=False)
    train(model, torch.optim.AdamW(model.parameters()), tokens, marks)


def fsdp_validates(marks: Profiled) -> None:
    model = fsdp(blocks())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        train_batch = torch.randn(64, WIDTH)
        model(train_batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                model(train_batch)
        if marks is not None:
            marks.step()


def fsdp_accumulates(marks: Profiled) -> None:
    model: Any = fsdp(blocks())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        for micro in range(3):
            model.set_requires_gradient_sync(micro == 2)
            model(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if marks is not None:
            marks.step()


def hsdp(marks: Profiled) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    model = fsdp(blocks(), mesh=mesh)
    train(model, torch.optim.AdamW(model.parameters()), lambda: torch.randn(64, WIDTH), marks)


CASES: dict[str, Callable[[Profiled], None]] = {
    item.__name__: item
    for item in (
        ddp, ddp_accumulates, ddp_by_hand, ddp_validates, zero, fsdp_equal, fsdp_root, fsdp_no_root, fsdp_validates,
        fsdp_accumulates, hsdp,
    )
}  # fmt: skip
WINDOWS = ("marked", "whole", "none")
"""A schedule with marked steps; the whole run without any mark; no profiler, so that flight dumps are all there is."""


@contextmanager
def window(kind: str, file: Path) -> Iterator[Profiled]:
    if kind == "none":
        yield None
        return
    expected: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "profile_memory": True}
    if kind == "marked":
        plan = schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1)
        expected |= {"schedule": plan, "with_stack": True, "on_trace_ready": lambda p: p.export_chrome_trace(str(file))}
    with profile(**expected) as profiler:
        yield profiler
    if kind == "whole":
        profiler.export_chrome_trace(str(file))


def run(context: Any, folder: str, names: tuple[str, ...]) -> None:
    """Every case under every window, each into its own folder."""
    for name in names:
        for kind in WINDOWS:
            place = Path(folder) / f"{name}-{kind}"
            place.mkdir(parents=True, exist_ok=True)
            torch.manual_seed(0)
            before = len(recorded()["entries"])
            with window(kind, place / f"trace_rank{context.rank}.json.gz") as marks:
                CASES[name](marks)
            dump = recorded()
            dump["entries"] = dump["entries"][before:]  # as if each case were a job of its own
            (place / f"dump_{context.rank}").write_bytes(pickle.dumps(dump, 2))


def recorded() -> dict[str, Any]:
    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # noqa: S301
