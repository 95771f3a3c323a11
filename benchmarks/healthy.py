"""Runs very many healthy jobs on a machine that is too busy, and counts the alarms of the live watch.

Run it: `python benchmarks/healthy.py --runs 200 --at-once 4 --busy 20 --folder /tmp/healthy`; `--busy` adds loops that
do nothing else than compute. It continues where it was stopped: what was done lies in FOLDER/healthy.jsonl.

The ranks are forks of a process that has imported torch (`benchmarks/forked.py`). Every job has two ranks, and a
strategy, checkpoints and evaluations by its number. It must end as `finished`, without a word of the watch. What
`dtk diagnose` says is counted too: on such a machine a rank may really be late.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import forked  # noqa: E402
from benchmarks.kills import JOB, dtk, runs  # noqa: E402
from diagnostics.diagnose import diagnose  # noqa: E402
from diagnostics.tree.outcome import account_of  # noqa: E402
from dtk.sharding.registry import CONFIG_TYPES  # noqa: E402

TRAITS = {name: kind.traits for name, kind in CONFIG_TYPES.items()}
STRATEGIES = [
    name
    for name, traits in TRAITS.items()
    if not (traits.one_process or traits.library or traits.replicated_over == "dp_replicate")
]
"""Torch's own strategies of several ranks, but the one that shards within groups of them."""


def start(number: int, folder: Path, traces: bool) -> "subprocess.Popen[bytes]":
    """Start one job in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = STRATEGIES[number % len(STRATEGIES)]
    steps = [f"train.steps={6 + number % 7}", "train.evaluate_every=3", f"checkpoint.every={2 + number % 4}"]
    steps += ["record=full"] * traces
    return dtk(folder, "run", *JOB, *steps, f"strategy={chosen}")


def judged(code: int, folder: Path) -> dict[str, Any]:
    """Return what is wrong with a job that ended (empty if nothing), its diagnosis, and shares of its steps."""
    paths = runs(folder)
    if code or len(paths) != 1:
        return {"wrong": f"exit code {code}, {len(paths)} runs", "diagnosis": ""}
    state = json.loads((paths[0] / "status.json").read_text())["state"]
    alarms = [path.read_text() for path in paths[0].glob("logs/*/watch.json")]
    report = diagnose(paths[0])
    causes = [finding.cause for finding in report.root_causes]
    right = (state, alarms) == ("finished", [])
    account = account_of(report.measures)
    return {
        "wrong": "" if right else f"{state}, {alarms}",
        "diagnosis": f"{report.outcome} {' '.join(causes)}".strip(),
        **({"waiting": account.waiting, "pauses": account.pauses, "exposed": account.exposed} if account else {}),
    }


def main() -> int:
    """Command line; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--traces", action="store_true", help="record traces: how much of a step the ranks wait")
    parser.add_argument("--seconds", type=float, default=1e9, help="start none after so long; a later call continues")
    parser.add_argument("--folder", type=Path, default=Path("healthy"))
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    forked.warm()
    record = folder / "healthy.jsonl"
    record.touch()
    done: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
    waiting = [number for number in range(chosen.runs) if number not in {entry["number"] for entry in done}]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(chosen.busy)]
    going: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
    ends_s = time.monotonic() + chosen.seconds
    try:
        while going or (waiting and time.monotonic() < ends_s):
            while waiting and len(going) < chosen.at_once and time.monotonic() < ends_s:
                number = waiting.pop(0)
                going[number] = start(number, folder / str(number), chosen.traces), time.monotonic()
            time.sleep(0.5)
            for number, (process, began_s) in [*going.items()]:
                if (code := process.poll()) is None:
                    continue
                del going[number]
                took_s, load = round(time.monotonic() - began_s, 1), round(os.getloadavg()[0], 1)
                done.append({"number": number, "load": load, "took_s": took_s, **judged(code, folder / str(number))})
                with record.open("a") as lines:
                    lines.write(json.dumps(done[-1]) + "\n")
                if done[-1]["wrong"]:
                    print(f"run {number}: {done[-1]['wrong']}; see {folder / str(number)}", flush=True)
                else:
                    shutil.rmtree(folder / str(number))
    finally:
        for process in busy:
            process.kill()
    loads = sorted(entry["load"] for entry in done) or [0.0]
    wrong = sum(bool(entry["wrong"]) for entry in done)
    print(f"{len(done)} runs, {wrong} wrong; load {loads[0]} to {loads[-1]}, median {loads[len(loads) // 2]}")
    for name in ("waiting", "pauses", "exposed"):
        shares = sorted(entry[name] for entry in done if entry.get(name) is not None)
        if shares:
            at = [shares[min(len(shares) - 1, int(part * len(shares)))] for part in (0.5, 0.9, 0.95, 1.0)]
            print(f"{name}, share of a step (median, 90 %, 95 %, most): {', '.join(f'{item:.1%}' for item in at)}")
    print(f"diagnoses: {dict(Counter(entry['diagnosis'] for entry in done))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
