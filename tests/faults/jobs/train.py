"""A training script as users write them: plain PyTorch that prints its steps. `--fault` is what is to be found."""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

FEATURES, CLASSES = 32, 10
HORIZON = 150
"""Steps of the schedule: a run, or a resume of it, which then goes on with the lowest learning rate."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=HORIZON)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--optimizer", choices=["SGD", "AdamW"], default="SGD")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--fault", default="none")
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def batch(step: int, part: int, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rank = int(os.environ.get("RANK", "0"))
    generator = torch.Generator().manual_seed(1_000_003 * step + 1_009 * part + rank)
    x = torch.randn(64, FEATURES, generator=generator)
    return x, (x @ teacher).argmax(dim=1)


def resume(args: argparse.Namespace, model: nn.Module, module: nn.Module, parts: dict) -> int:
    states = torch.load(args.resume)
    weights = states["model"]
    if args.fault == "lost_weights":
        weights = {f"model.{name}": value for name, value in weights.items()}
    if args.fault == "wrapper":
        model.load_state_dict(weights)  # loads: wrapper
    module.load_state_dict(weights, strict=args.fault != "lost_weights")  # loads: module
    for name, part in parts.items():
        if args.fault not in ("lost_weights", "lost_schedule"):
            part.load_state_dict(states[name])  # loads: parts
    print(f"resumed from {args.resume} at step {states['step']}", flush=True)
    return states["step"]


def spread(logits: torch.Tensor) -> torch.Tensor:
    """Return a penalty on classes whose logits do not vary: one of them is masked, and 1e-8 is 0 in float16."""
    seen = logits.half() * (torch.arange(CLASSES) > 0).half()
    return functional.relu(1 - torch.sqrt(seen.var(dim=0) + 1e-8)).mean()


def main() -> None:
    args = arguments()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    teacher = torch.randn(FEATURES, CLASSES)
    module = Net(args.hidden)
    parameters = list(module.parameters())
    if args.fault == "frozen":  # The optimizer keeps the parameters that the model had before it was replaced.
        parent, module = module, Net(args.hidden)
        module.load_state_dict(parent.state_dict())
    model = DistributedDataParallel(module) if world > 1 else module
    more = {"momentum": 0.9} if args.optimizer == "SGD" else {}
    optimizer = getattr(torch.optim, args.optimizer)(parameters, lr=args.lr, **more)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: 0.001 + 0.999 * (1 + math.cos(math.pi * min(1.0, n / HORIZON))) / 2
    )
    scaler = torch.amp.GradScaler("cpu", enabled=args.fp16)
    parts = {"optimizer": optimizer, "schedule": schedule}
    start = resume(args, model, module, parts) if args.resume else 0
    for step in range(start + 1, start + args.steps + 1):
        total = 0.0
        for part in range(args.accumulate):
            x, y = batch(step, part, teacher)
            with torch.autocast("cpu", torch.float16, enabled=args.fp16):
                logits = model(x)
            loss = functional.cross_entropy(logits.float(), y)
            loss = loss + spread(logits) if args.fault == "overflow" else loss
            loss = loss if args.fault == "sum" else loss / args.accumulate
            total += loss.item()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(module.parameters(), math.inf if args.fault == "spike" else 1.0)
        if args.fault == "spike" and step > 60:
            for group in optimizer.param_groups:
                group["lr"] = 30 * args.lr
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        if rank == 0:
            scale = f" scale {scaler.get_scale():g}" if args.fp16 else ""
            print(f"step {step} loss {total:.4f} grad_norm {norm:.4f}{scale}", flush=True)
    if args.save and rank == 0:
        states = {"model": module.state_dict(), **{name: part.state_dict() for name, part in parts.items()}}
        torch.save({**states, "step": step}, args.save)
    # Before the group: as its last owner, DDP's reducer joins gloo's threads with the GIL held, for which one may wait.
    del model
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
