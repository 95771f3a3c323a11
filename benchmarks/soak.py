"""Runs very many tiny steps and checks that nothing grows: memory of each process, files, the time of a step.

Run it: `python benchmarks/soak.py --steps 100000 --restarts 3`. The run is stopped (SIGTERM) and resumed as often as
said; ring and heartbeat must tell the last step in the end. Prints one line a check; exit code 1 when one fails.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
JOB = [
    "model=gpt2_tiny", "model.layers=1", "model.width=16", "model.heads=1", "data=synthetic", "data.sequence_length=16",
    "train.evaluate_every=-1", "schedule=constant", "record=light", "strategy=ddp", "launcher.nproc=2",
    "launcher.device=cpu", "checkpoint.every=0", "train.log_every=10",
]  # fmt: skip
EVERY_S = 2.0
GROWTH, FREE_BYTES = 1.03, 8 << 20
"""Of a process's median memory, the last third of its life over the second one."""
DRIFT = 1.2
"""Of the median step time, likewise."""
LIGHT_BYTES = 1 << 20
"""Of all files but metrics.jsonl, which has a line every 10 steps, and checkpoints: rings, heartbeats, black boxes."""


def thirds(values: list[float]) -> tuple[float, float]:
    """Medians of the second and the last third: the first one warms up."""
    third = max(1, len(values) // 3)
    return statistics.median(values[third : 2 * third] or values), statistics.median(values[2 * third :])


def watched(folder: Path, words: list[str], stop_after: int | None) -> dict[str, list[float]]:
    """Run to the end, or stop after so many steps; resident bytes over time by process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dtk", "run", f"runs_folder={folder}", *words],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    memory: defaultdict[str, list[float]] = defaultdict(list)
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(EVERY_S)
        with suppress(psutil.Error):
            for item in [parent, *parent.children(recursive=True)]:
                memory[f"process {item.pid}"].append(float(item.memory_info().rss))
        if stop_after is not None and last_step(folder) >= stop_after:
            process.send_signal(signal.SIGTERM)
            stop_after = None
    error = process.stderr.read().decode() if process.stderr else ""
    if process.returncode not in (0, 75, 143):
        raise SystemExit(f"the run ended with exit code {process.returncode}: {error[-500:]}")
    return {name: values for name, values in memory.items() if len(values) >= 9}


def last_step(folder: Path) -> int:
    """Return the last step that a heartbeat tells."""
    steps = [0]
    for path in folder.glob("*/heartbeat/rank_00000.json"):
        with suppress(ValueError, OSError, TypeError):
            steps.append(int(json.loads(path.read_text().rstrip("\0 "))["step"] or 0))
    return max(steps)


def step_times(run: Path) -> list[float]:
    """Seconds of each step that was logged, oldest first."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [float(record["step_time_s"]) for record in records if record.get("step_time_s")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--restarts", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, memory, words = Path(name), {}, [*JOB, f"train.steps={chosen.steps}"]
        for part in range(1, chosen.restarts + 2):
            last = part > chosen.restarts
            memory |= watched(folder, words, None if last else chosen.steps * part // (chosen.restarts + 1))
            (run,) = (path.parent for path in folder.glob("*/status.json"))
            words = [f"resume={run}"]
        checks = {}
        for process, values in memory.items():
            before, after = thirds(values)
            checks[f"{process}: {before / 2**20:.0f} -> {after / 2**20:.0f} MiB"] = (
                after <= before * GROWTH + FREE_BYTES
            )
        before, after = thirds(step_times(run))
        checks[f"step time: {before * 1e3:.1f} -> {after * 1e3:.1f} ms"] = after <= before * DRIFT
        kept = [path for path in run.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
        small = sum(path.stat().st_size for path in kept if path.name != "metrics.jsonl" and path.suffix != ".ring")
        checks[f"files without metrics and rings: {small / 1024:,.0f} KiB"] = small < LIGHT_BYTES * (
            chosen.restarts + 2
        )
        state = json.loads((run / "status.json").read_text())
        checks[f"status: {state['state']}, step {state['step']}"] = (state["state"], state["step"]) == (
            "finished",
            chosen.steps,
        )
        checks[f"heartbeat: step {last_step(folder)}"] = last_step(folder) == chosen.steps
    for text, good in checks.items():
        print(f"{'ok  ' if good else 'FAIL'} {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
