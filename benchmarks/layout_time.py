"""Step time of layouts that cut the model, beside the same layout written by hand with torch's API. Prints ratios.

    python benchmarks/layout_time.py [--layouts tp,fsdp-tp,pp,zero1-pp] [--model llama_tiny]

By hand: `parallelize_module` with sequence-parallel norms and `loss_parallel`, `fully_shard` around it; or
`torch.distributed.pipelining` with `PipelineStage` and `Schedule1F1B`. Same weights, batch, AdamW and clipping; the
sides take turns in the same processes, as in step_time.py, and ratios are taken round by round. The last column is the
ratio of the processor time of all ranks, which says what each side does also where ranks wait for a processor.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sides import Batches, dtk_side
from step_time import quiet
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from dtk.config.compose import compose
from dtk.config.schema import Config, LlamaConfig
from dtk.dimensions.pp import cut
from dtk.models.build import build_model
from dtk.models.initialize import initialize_model
from dtk.models.llama import rotary_table, rotate
from dtk.parallel.context import Context, join, leave, meet

LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tp": (2, ("strategy=fsdp", "parallel.tp=2")),
    "fsdp-tp": (4, ("strategy=fsdp", "parallel.tp=2")),
    "pp": (2, ("strategy=ddp", "parallel.pp=2")),
    "zero1-pp": (4, ("strategy=zero1", "parallel.pp=2")),
}
"""Ranks and overrides of dtk's side."""
Step = Callable[[], None]


class Attention(nn.Module):
    """Llama's, of plain layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        narrow = config.kv_heads * self.head_width
        self.q, self.projection = (nn.Linear(config.width, config.width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(config.width, narrow, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the same shape."""
        q, k, v = (layer(x).unflatten(2, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.projection(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(config.width, config.ffn_width, bias=False) for _ in range(2))
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One block."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(config.width, eps=config.norm_eps) for _ in range(2))
        self.attention, self.mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map the residual stream to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Plain(nn.Module):
    """dtk's Llama of plain layers, with the same names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of token ids."""
        config, x = self.config, self.token_embedding(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rotary_table(positions, config.width // config.heads, config.rope_theta)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.final_norm(x))


def by_hand_tp(config: Config, context: Context) -> Step:
    """Return the step of tensor parallelism by `parallelize_module`, sharded over the other ranks."""
    mesh = init_device_mesh(
        "cpu", (context.world_size // config.parallel.tp, config.parallel.tp), mesh_dim_names=("dp", "tp")
    )
    model: Any = Plain(config.model)
    reference = build_model(config.model, [])
    initialize_model(reference, config.seed)
    model.load_state_dict(reference.state_dict())
    whole: Any = PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    )
    root = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "final_norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh["tp"], root)
    inside = {
        "attention_norm": SequenceParallel(),
        "attention": whole,
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.projection": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], inside)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), fused=True)
    batches = batches_of(config, context)

    def step() -> None:
        loss = torch.zeros(())
        rounds = batches.next()
        for i, (inputs, targets) in enumerate(rounds):
            model.set_requires_gradient_sync(i == len(rounds) - 1)
            with loss_parallel():
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / len(rounds)
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        read_back(batches, loss)

    return step


class Stage(nn.Module):
    """dtk's stage as torch's pipeline calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids or the residual stream."""
        return self.model(x) if x.dtype == torch.int64 else self.model(x, stream=x)


def by_hand_pp(config: Config, context: Context) -> Step:
    """Return the step of two stages by torch's own pipeline, sharded over the other ranks of a stage."""
    stages, ranks = config.parallel.pp, context.world_size
    mesh = init_device_mesh("cpu", (stages, ranks // stages), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    model = build_model(config.model, [])
    initialize_model(model, config.seed)
    module: Any = Stage(cut(model, number, config.stage_blocks(config.model.layers)))
    if ranks > stages:
        for block in model.blocks.children():
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["dp"])
    train, width = config.train, config.model.width
    shape = train.micro_batch_size, config.data.sequence_length
    given = torch.zeros(shape, dtype=torch.int64) if number == 0 else torch.zeros(*shape, width, requires_grad=True)
    last = number == stages - 1
    result = torch.zeros(*shape, config.model.vocab_size if last else width, requires_grad=True)
    stage = PipelineStage(
        module, number, stages, context.device, input_args=(given,), output_args=(result,), group=mesh.get_group("pp")
    )
    batches = batches_of(config, context)
    count = batches.rounds
    schedule = Schedule1F1B(stage, count, loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    optimizer = torch.optim.AdamW(module.parameters(), lr=config.optimizer.lr, betas=(0.9, 0.95), fused=True)

    def step() -> None:
        rounds, losses = batches.next(), list[Tensor]()
        inputs, targets = (torch.cat(each) for each in zip(*rounds, strict=True))
        schedule.step(
            *((inputs,) if number == 0 else ()), target=targets if last else None, losses=losses if last else None
        )
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters()])
        squared = (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).square()
        dist.all_reduce(squared, group=mesh.get_group("pp"))
        torch.nn.utils.clip_grads_with_norm_(module.parameters(), 1.0, squared.sqrt())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        read_back(batches, torch.stack(losses).mean() if last else torch.zeros(()))

    return step


def batches_of(config: Config, context: Context) -> Batches:
    """Return batches that the ranks of one data-parallel place have alike."""
    batches = Batches(config, context)
    batches.generator = np.random.default_rng(context.dp_rank)
    batches.rounds = config.batch_plan(context.world_size).accumulation_steps
    return batches


def read_back(batches: Batches, loss: Tensor) -> None:
    """Read the loss on the host as the other side does."""
    batches.read_back(loss.full_tensor() if hasattr(loss, "full_tensor") else loss)


BY_HAND = {"tp": by_hand_tp, "fsdp-tp": by_hand_tp, "pp": by_hand_pp, "zero1-pp": by_hand_pp}


def measure(options: argparse.Namespace) -> None:
    """One rank."""
    ranks, overrides = LAYOUTS[options.layout]
    sizes = [f"train.micro_batch_size={options.micro}", f"train.global_batch_size={options.batch}"]
    sizes += [f"data.sequence_length={options.sequence_length}", "train.log_every=10", "train.steps=1000000"]
    more = ["data=synthetic", "data.vocab_size=512", "schedule=constant", "checkpoint=off", "train.evaluate_every=-1"]
    config = compose([f"model={options.model}", *more, *sizes, *overrides]).config
    context = join(meet(60), "cpu", "gloo", 300, config.mesh(ranks))
    with tempfile.TemporaryDirectory() as folder, quiet():
        sides: dict[str, Step] = {"by hand": BY_HAND[options.layout](config, context)}
        sides["dtk"] = dtk_side("off", config, context, Path(folder))
        times: dict[str, list[float]] = {name: [] for name in sides}
        busy: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(options.rounds + 1):
            for name in sorted(sides, reverse=bool(number % 2)):
                dist.barrier()
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                for _ in range(options.steps):
                    sides[name]()
                took_s, took_cpu_s = time.perf_counter() - began_s, torch.tensor(time.process_time() - began_cpu_s)
                dist.all_reduce(took_cpu_s)
                if number:
                    times[name].append(took_s / options.steps)
                    busy[name].append(float(took_cpu_s) / options.steps)
    if context.rank == 0:
        ratios, cpu_ratios = (
            [ours / theirs for ours, theirs in zip(each["dtk"], each["by hand"], strict=True)] for each in (times, busy)
        )
        low, middle, high = statistics.quantiles(ratios, n=4)
        hand, ours = (1000 * statistics.median(times[name]) for name in ("by hand", "dtk"))
        print(
            f"| {options.layout} | {ranks} | {hand:.1f} | {ours:.1f} | {middle:.3f} | {low:.3f} - {high:.3f} "
            f"| {statistics.median(cpu_ratios):.3f} |",
            flush=True,
        )
    leave()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Start the ranks of each layout in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--layout", default="", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="llama_tiny")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side in a round")
    parser.add_argument("--batch", type=int, default=16, help="global batch size")
    parser.add_argument("--micro", type=int, default=2, help="micro-batch size")
    parser.add_argument("--sequence-length", type=int, default=128)
    options = parser.parse_args()
    if options.layout:
        measure(options)
        return
    heads = ("layout", "ranks", "by hand, ms per step", "dtk, ms per step", "ratio, median of rounds", "quartiles")
    print(f"| {' | '.join((*heads, 'processor time'))} |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for layout in options.layouts.split(","):
        ranks = LAYOUTS[layout][0]
        os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
        subprocess.run([*command, *sys.argv[1:], "--layout", layout], check=True)


if __name__ == "__main__":
    main()
