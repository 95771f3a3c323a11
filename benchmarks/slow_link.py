"""Compressed gradients over a link slowed down on purpose: step time, bytes on the link, final loss. Prints Markdown.

    sudo python benchmarks/slow_link.py --mbit 100 --steps 60

Two ranks under ddp, each in a network namespace of its own; the pair of interfaces between them has a token bucket
(`tc ... tbf`) on either side, which holds all that a rank sends. Bytes are those of the interface, headers included;
without `--mbit` the same link has no limit. Needs root, iproute2 and a kernel with veth and tbf.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnostics.contract.artifacts import RunPaths  # noqa: E402
from dtk.config.strict import from_plain  # noqa: E402
from dtk.parallel.context import Context  # noqa: E402
from dtk.parallel.stop import StopRequest  # noqa: E402
from dtk.plan.job import planned_job  # noqa: E402
from dtk.record.recorder import Recorder  # noqa: E402
from dtk.train.assemble import assemble  # noqa: E402
from tests.dist.ranks import placed  # noqa: E402

HOOKS = {
    "none": [],
    "fp16": ["strategy.communication_hook=fp16"],
    "bf16": ["strategy.communication_hook=bf16"],
    "int8": ["strategy.communication_hook=int8"],
    "topk, 10%": ["strategy.communication_hook=topk", "strategy.topk_ratio=0.1"],
    "topk, 1%": ["strategy.communication_hook=topk"],
    "powersgd, rank 4": ["strategy.communication_hook=powersgd"],
}
JOB = [
    *("strategy=ddp", "model=gpt2_tiny", "data=stdlib", "data.sequence_length=64", "train.global_batch_size=8"),
    *("train.micro_batch_size=4", "train.evaluate_every=-1", "checkpoint=off", "record=off", "launcher.device=cpu"),
]
FIRST = 5
"""Steps that are not timed."""
LAST = 20
"""Steps of which the final loss is the mean."""


def link(namespaces: list[str], mbit: int) -> None:
    """Make two namespaces and the pair of interfaces between them."""

    def run(*words: str) -> None:
        subprocess.run(words, check=True)

    for name in namespaces:
        run("ip", "netns", "add", name)
    run("ip", "link", "add", "link0", "netns", namespaces[0], "type", "veth", "peer", "link1", "netns", namespaces[1])
    for i, name in enumerate(namespaces):
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "address", "add", f"10.99.0.{i + 1}/24", "dev", f"link{i}")
        for interface in ("lo", f"link{i}"):
            run(*inside, "ip", "link", "set", interface, "up")
        if mbit:
            bucket = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms")
            run(*inside, "tc", "qdisc", "add", "dev", f"link{i}", "root", "tbf", *bucket)


def measure(context: Context, cases: dict[str, dict[str, Any]], folder: str) -> dict[str, tuple[float, float, float]]:
    """On every rank; returns name -> (median step in s, bytes sent in a step, mean of the last losses)."""
    sent = Path(f"/sys/class/net/link{context.rank}/statistics/tx_bytes")
    by_name = {}
    for name, plain in cases.items():
        config, paths = from_plain(plain), RunPaths(Path(f"{folder}/{name}"))
        recorder = Recorder(config, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
        loop = assemble(config, placed(context, config), paths, recorder, StopRequest())
        times, sizes, losses = [], [], []
        loop.measures.start(0)
        while loop.state.step < config.train.steps:
            began, before = time.perf_counter(), int(sent.read_text())
            loop.advance()
            times.append(time.perf_counter() - began)
            sizes.append(int(sent.read_text()) - before)
            losses.append(loop.last["loss"])
        by_name[name] = median(times[FIRST:]), median(sizes[FIRST:]), fmean(losses[-LAST:])
    return by_name


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=0, help="megabits a second in either direction; 0 = no limit")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    if arguments.steps <= FIRST:
        parser.error(f"--steps must be above {FIRST}: the first ones are not timed")
    length = [f"train.steps={arguments.steps}", "train.log_every=1"]
    cases = {name: planned_job([*JOB, *hook, *length], None, 2).plain for name, hook in HOOKS.items()}
    namespaces = [f"dtk{os.getpid()}_{i}" for i in range(2)]
    try:
        link(namespaces, arguments.mbit)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "arguments").write_bytes(pickle.dumps((cases, folder)))
            path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
            place = {"MASTER_ADDR": "10.99.0.1", "MASTER_PORT": "29400", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
            ranks = []
            for rank, name in enumerate(namespaces):
                more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": f"link{rank}"}
                command = ["ip", "netns", "exec", name, sys.executable, "-m", "tests.dist.ranks", "slow_link:measure"]
                environment = {**os.environ, **place, **more, "PYTHONPATH": path}
                ranks.append(subprocess.Popen([*command, folder], env=environment, cwd=ROOT))
            assert not any(rank.wait() for rank in ranks)
            output = pickle.loads((Path(folder) / "0").read_bytes())  # noqa: S301
    finally:
        for name in namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False)
    print(f"| hook | step ms | ratio to none | KiB sent per step | ratio to none | mean of the last {LAST} losses |")
    print("|" + 6 * "---|")
    whole = output["none"]
    for name, (step_s, sent, loss) in output.items():
        ratios = f"{step_s / whole[0]:.2f} | {sent / 1024:,.0f} | {sent / whole[1]:.2f}"
        print(f"| {name} | {1e3 * step_s:.0f} | {ratios} | {loss:.3f} |")


if __name__ == "__main__":
    main()
