"""A profiled loop on the CPU, in which the host may do other work than the steps."""

import argparse
import gc
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--collect", action="store_true", help="collect garbage in each step")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--grow", type=int, default=0, help="samples by which each batch is larger than the one before")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    forward = torch.compile(model, dynamic=False, backend="aot_eager") if args.compile else model
    samples = [{"tokens": [n]} for n in range(200_000)]
    forward(torch.randn(64, 512)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], with_stack=not args.compile) as profiler:
        for step in range(1, 7):
            forward(torch.randn(64 + args.grow * step, 512)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.collect:
                gc.collect()
            profiler.step()
    profiler.export_chrome_trace(str(args.trace))
    print(len(samples), "samples")


if __name__ == "__main__":
    main()
