"""The longest sequence that a rank trains within a memory limit, alone and with `parallel.cp`. Prints a table.

    python benchmarks/context_limit.py [--budget-mib 192] [--ranks 8]

The limit is the kernel's (RLIMIT_DATA: all private memory of the process), set once the model, its optimizer and a
first step are there: what is left over is the budget of a step. One process finds the longest sequence to the next 128
tokens; then `cp` ranks with the same budget each train one of that many times the length, by ring attention. glibc maps
each tensor by itself (MALLOC_MMAP_THRESHOLD_) and gives it back when it is freed: the limit counts tensors that are
alive, not holes between them in the heap.
"""

import argparse
import os
import resource
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dtk.config.strict import from_plain  # noqa: E402
from dtk.parallel.context import Context  # noqa: E402
from dtk.plan.job import planned_job  # noqa: E402
from tests.dist.ranks import placed, run_ranks  # noqa: E402

SHORTEST, STEP = 128, 128


def trains(context: Context, plain: dict[str, Any], budget: int) -> bool:
    """On every rank: whether a step fits into what a first, short one took and so many bytes."""
    import torch

    from dtk.data.dataset import Batch
    from dtk.train.setup import set_up

    config = from_plain(plain)
    context = placed(context, config)
    parts = set_up(config, context)

    def step(length: int) -> None:
        tokens = torch.zeros(1, length, dtype=torch.int64)
        parts.runner.run([Batch(tokens, tokens)], 1.0 / length, lambda i: None)
        parts.optimizer.step()
        parts.optimizer.zero_grad()

    step(64)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    used = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, (used + budget, resource.RLIM_INFINITY))
    try:
        step(config.data.sequence_length)
    except (RuntimeError, MemoryError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


def fits(length: int, ranks: int, budget: int) -> bool:
    """Whether all ranks train one sequence of that length."""
    layout = ["strategy=ring", f"parallel.cp={ranks}"] if ranks > 1 else ["strategy=single"]
    overrides = ["model=llama_tiny", "data=synthetic", "data.vocab_size=512", f"data.sequence_length={length}", *layout]
    sizes = [f"model.context_length={length}", "train.global_batch_size=1", "train.micro_batch_size=1"]
    plain = planned_job([*overrides, *sizes, "launcher.device=cpu", "record=off"], None, ranks).plain
    return all(run_ranks("benchmarks.context_limit:trains", ranks, plain, budget, timeout_s=900))


def main() -> int:
    """Print the table; 1 when the ranks do not train their sequence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-mib", type=int, default=192)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    budget, length = options.budget_mib << 20, SHORTEST
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)  # Read when the ranks start.
    print(
        f"llama_tiny, {options.budget_mib} MiB per rank for a step\n\n| ranks | tokens | trains |\n|---|---|---|",
        flush=True,
    )
    high = 0
    while high == 0 or high - length > STEP:
        tried = 2 * length if high == 0 else (length + high) // 2 // STEP * STEP
        trained = fits(tried, 1, budget)
        print(f"| 1 | {tried:,} | {'yes' if trained else 'no'} |", flush=True)
        length, high = (tried, high) if trained else (length, tried)
    longest = length * options.ranks
    trained = fits(longest, options.ranks, budget)
    print(f"| {options.ranks} | {longest:,} | {'yes' if trained else 'no'} |")
    return int(not trained)


if __name__ == "__main__":
    sys.exit(main())
