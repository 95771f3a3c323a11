"""Small real trainings that use memory well or badly, profiled; each leaves what any PyTorch job would leave."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function

WIDTH, BLOCKS, VOCAB, BATCH, STEPS = 128, 4, 96, 8, 2
Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], None]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def loss_of(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(tokens)
    return logits, F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    loss_of(model, tokens)[1].backward()
    optimizer.step()
    optimizer.zero_grad()


def sharded(units: bool = True, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = Model()
    if units:
        for block in model.blocks:
            fully_shard(block, **options)
    return fully_shard(model)


def whole_parameters_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    mine = torch.cat([p.detach().to_local().flatten() for p in model.parameters()])
    whole = torch.empty(dist.get_world_size() * mine.numel())
    dist.all_gather_into_tensor(whole, mine)  # case: whole_parameters
    plain_step(model, optimizer, tokens)
    del whole


def gathered_logits() -> Step:
    kept = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
        logits, loss = loss_of(model, tokens)
        copies = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, logits.detach())  # case: gathered_logits
        kept.append(copies)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gathered_objects_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    collected: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(collected, torch.zeros(1 << 18))  # case: gathered_objects
    plain_step(model, optimizer, tokens)


def state_dict_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    plain_step(model, optimizer, tokens)
    with record_function("checkpoint"):
        whole = {name: value.full_tensor() for name, value in model.state_dict().items()}  # case: state_dict
    del whole


def streamed_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    """Each parameter whole, one at a time: as an export should."""
    plain_step(model, optimizer, tokens)
    with record_function("checkpoint"):
        for value in model.state_dict().values():
            value.full_tensor()


def unshard_all_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    """All blocks are gathered before the first one is used."""
    for block in model.blocks:
        block.unshard()
    plain_step(model, optimizer, tokens)


def parameters_one_by_one(keep: bool) -> Step:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
        whole = []
        for parameter in model.parameters():
            mine = parameter.detach().to_local().contiguous()
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, mine)
            whole.append(torch.cat(parts) if keep else parts[0].norm())
        plain_step(model, optimizer, tokens)

    return step


def leaking() -> Step:
    history = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
        loss_of(model, tokens)[1].backward()
        with record_function("histogram"):
            history.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()

    return step


def zero_grad_first_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    """Gradients live on to the next step: no leak."""
    optimizer.zero_grad()
    loss_of(model, tokens)[1].backward()
    optimizer.step()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Step]]] = {
    "healthy": (sharded, lambda: plain_step),
    "healthy_replicas": (lambda: nn.parallel.DistributedDataParallel(Model()), lambda: zero_grad_first_step),
    "root_only": (lambda: sharded(units=False), lambda: plain_step),
    "no_reshard": (lambda: sharded(reshard_after_forward=False), lambda: plain_step),
    "whole_parameters": (sharded, lambda: whole_parameters_step),
    "gathered_logits": (lambda: nn.parallel.DistributedDataParallel(Model()), gathered_logits),
    "gathered_objects": (sharded, lambda: gathered_objects_step),
    "state_dict": (sharded, lambda: state_dict_step),
    "streamed": (sharded, lambda: streamed_step),
    "leak": (sharded, leaking),
    "unshard_all": (sharded, lambda: unshard_all_step),
    "one_by_one": (sharded, lambda: parameters_one_by_one(keep=True)),
    "one_at_a_time": (sharded, lambda: parameters_one_by_one(keep=False)),
}


def train(context: Any, folder: str) -> None:
    """Every case in turn, each into its own folder."""
    for name, (build, make) in CASES.items():
        train_case(context.rank, Path(folder) / name, build(), make())


def train_case(rank: int, folder: Path, model: nn.Module, step: Step) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    before = len(recorded()["entries"])
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCAB, (BATCH, 64))
    plain_step(model, optimizer, tokens)  # creates the optimizer's state and DDP's buckets
    plain_step(model, optimizer, tokens)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        for number in range(STEPS):
            with record_function(f"ProfilerStep#{number}"):
                step(model, optimizer, tokens)
    profiler.export_chrome_trace(str(folder / f"trace_rank{rank}.json.gz"))
    dump = recorded()
    dump["entries"] = dump["entries"][before:]  # as if each case were a job of its own
    (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))


def recorded() -> dict[str, Any]:
    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # noqa: S301
