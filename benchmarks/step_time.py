"""Step time of dtk beside a hand-written loop, Accelerate and Lightning Fabric. Prints ratios.

    python benchmarks/step_time.py --model gpt2_tiny --strategy ddp

Two ranks are started once; every round runs all sides in turn in the same processes, so that noise
of the machine hits all alike. The ratio is taken round by round, its median printed; the same for the CPU time of
rank 0 (all its threads), which a busy neighbour lengthens less than it lengthens the step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

RANKS = 2


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_tiny")
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
    parser.add_argument("--sides", default="plain,dtk off,dtk light,accelerate,fabric")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps of each side in a round")
    parser.add_argument("--batch", type=int, default=16, help="global batch size")
    parser.add_argument("--micro", type=int, default=8, help="micro-batch size")
    parser.add_argument("--sequence-length", type=int, default=128)
    return parser.parse_args()


def launch() -> None:
    """Start the ranks with torchrun's module and this very command line."""
    cores = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // RANKS))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    os.execv(sys.executable, [*command, __file__, *sys.argv[1:]])


def measure(arguments: argparse.Namespace) -> None:
    """One rank."""
    from sides import SIDES

    from dtk.config.compose import compose
    from dtk.parallel.context import join, leave, meet

    config = compose(
        [
            f"model={arguments.model}",
            f"strategy={arguments.strategy}",
            "schedule=constant",
            "checkpoint=off",
            f"data.sequence_length={arguments.sequence_length}",
            f"train.global_batch_size={arguments.batch}",
            f"train.micro_batch_size={arguments.micro}",
            "train.steps=1000000",
            "train.log_every=10",
            "train.evaluate_every=-1",
        ]
    ).config
    context = join(meet(60), "cpu", "gloo", 300, config.strategy.mesh(RANKS))
    names = arguments.sides.split(",")
    with tempfile.TemporaryDirectory() as folder, quiet():
        steps = {name: SIDES[name](config, context, Path(folder)) for name in names}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for round_number in range(arguments.rounds + 1):
            # Who comes first changes each round: the one after a costly neighbour meets a cold cache.
            first = round_number % len(names)
            for name in names[first:] + names[:first]:
                step = steps[name]
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                for _ in range(arguments.steps):
                    step()
                if round_number:
                    spent = time.perf_counter() - began_s, time.process_time() - began_cpu_s
                    times[name].append((spent[0] / arguments.steps, spent[1] / arguments.steps))
    if context.rank == 0:
        report(arguments, times)
    leave()
    sys.stdout.flush()
    os._exit(0)


class quiet:  # noqa: N801
    """Keep the sides' own progress lines off the terminal."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        self.saved = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self.saved, 1)


def report(arguments: argparse.Namespace, times: dict[str, list[tuple[float, float]]]) -> None:
    """One Markdown row per side: median, median of the ratios to the first and quartiles, of step and of CPU time."""
    first = next(iter(times))
    print(f"\n{arguments.model}, {arguments.strategy}, {RANKS} ranks, global batch {arguments.batch}, ", end="")
    print(f"{arguments.rounds} rounds of {arguments.steps} steps, sides interleaved\n")
    print(f"| side | step ms (median) | ratio to {first} (median of rounds) | quartiles | CPU ms | ratio | quartiles |")
    print("|---|---|---|---|---|---|---|")
    for name, values in times.items():
        cells = []
        for kind in (0, 1):
            ratios = [mine[kind] / other[kind] for mine, other in zip(values, times[first])]
            low, _, high = statistics.quantiles(ratios, n=4)
            median_ms = 1000 * statistics.median(value[kind] for value in values)
            cells += [f"{median_ms:.2f}", f"{statistics.median(ratios):.3f}", f"{low:.3f} - {high:.3f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    options = parse()
    if "RANK" in os.environ:
        measure(options)
    else:
        launch()
