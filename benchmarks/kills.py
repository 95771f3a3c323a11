"""Kills dtk at random moments, very often, and checks that nothing is lost.

Run it: `python benchmarks/kills.py --kills 1000 --folder /tmp/kills`. It continues where it was stopped: what was done
lies in FOLDER/kills.jsonl, and the random moments follow from the number of the kill.

dtk and its ranks are forks of a process that has imported torch (`benchmarks/forked.py`), unless `--cold`.

A kill is SIGKILL to the whole tree, to the parent, or to one rank, while one of these runs: a training run, `-m`,
`dtk tune`, `dtk rm`, an export, the end of a tracker, or `dtk diagnose` while it writes report/. After each, the
command (or its `resume`) is run to its end; a training run must then have the losses of a run that nobody disturbed,
and a tracker must take all of it by `dtk sync`.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import forked  # noqa: E402
from dtk.record.tracker_process import FINISH_S  # noqa: E402

JOB = [
    "model=gpt2_tiny", "model.layers=1", "model.width=32", "model.heads=2", "data.max_bytes=60000",
    "data.sequence_length=32", "train.evaluate_samples=16", "train.evaluate_every=-1", "schedule=constant",
    "launcher.nproc=2", "launcher.device=cpu",
]  # fmt: skip
STEPS = 6
RUN = [*JOB, f"train.steps={STEPS}", "checkpoint.every=2", "train.log_every=1"]
WHOM = ("tree", "parent", "rank")
KINDS = ("run", "tracker", "run", "sweep", "tune", "rm", "export", "diagnose")
LIVES_S = 10.0
"""Longest that a process may outlive its parent; a tracker's hands over what it was given, for `FINISH_S` at most."""


def dtk(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    """Start a command in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    with (folder / "output.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dtk", *words], cwd=folder, env=environment, stdout=log, stderr=log
        )


def kill(process: "subprocess.Popen[bytes]", whom: str, moments: random.Random) -> None:
    """Kill, and see that nothing lives on once the parent is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
        ranks = [child for child in tree if os.getsid(child.pid) == child.pid]  # As elastic starts them.
        trackers = [child for child in tree if "dtk.record.tracker_process" in child.cmdline()]
        chosen = {"tree": [process.pid, *(child.pid for child in tree)], "parent": [process.pid]}.get(whom, [])
        chosen = chosen or [moments.choice(ranks or tree or [psutil.Process(process.pid)]).pid]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(300)
        _, alive = psutil.wait_procs([child for child in tree if child not in trackers], timeout=LIVES_S)
        shown = [f"{orphan.status()} {' '.join(orphan.cmdline())[-80:]}" for orphan in alive]
        for orphan in alive:
            orphan.kill()
        if trackers and not alive:
            _, alive = psutil.wait_procs(trackers, timeout=FINISH_S + LIVES_S)
            shown = ["a tracker"] * len(alive)
        assert not alive, f"outlived their parent by {LIVES_S:.0f} s: {shown}"


def finish(folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> None:
    """Run a command to its end."""
    code = dtk(folder, *words).wait(600)
    assert code in codes, f"dtk {' '.join(words)}: exit code {code}; see {folder / 'output.log'}"


def losses(run: Path) -> dict[int, float]:
    """Step -> loss; a step that was made twice counts as it was made last."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines if line.endswith(b"}")]
    return {record["step"]: record["loss"] for record in records}


def runs(folder: Path) -> list[Path]:
    """Run folders, oldest first."""
    return sorted(path for path in (folder / "runs").glob("*-gpt2_tiny-*") if (path / "status.json").exists())


def kill_and_check(moments: random.Random, kind: str, whom: str, folder: Path, reference: Path, run_s: float) -> None:
    """One kill, and what must be true afterwards; `run_s`: how long the run of the reference took."""
    folder.mkdir()
    strategy = moments.choice(("ddp", "fsdp", "zero1"))
    if kind in ("rm", "diagnose"):
        shutil.copytree(reference, folder / "runs" / reference.name)
    commands = {
        "run": ["run", *RUN, f"strategy={strategy}"],
        "tracker": ["run", *RUN, f"strategy={strategy}", "tracker=tensorboard"],
        "export": ["run", *RUN, f"strategy={strategy}", "checkpoint.export=true"],
        "sweep": ["run", "-m", *JOB, "train.steps=2,3", "strategy=ddp"],
        "tune": ["tune", "bucket", *JOB, "strategy=ddp", "--values=5", "--repeats=1", "--steps=2"],
        "rm": ["rm", "last", "--yes"],
        "diagnose": ["diagnose", "last"],
    }
    process = dtk(folder, *commands[kind])
    longest_s = run_s * {"rm": 0.1, "diagnose": 0.3, "tune": 2.0, "sweep": 2.0}.get(kind, 1.2)
    if kind == "tracker":  # From the last step on, with the last checkpoint and the tracker's end.
        while process.poll() is None and not any(STEPS in losses(run) for run in runs(folder)):
            time.sleep(0.05)
        longest_s = 0.3 * run_s
    time.sleep(moments.uniform(0.05, longest_s))
    kill(process, whom, moments)
    check(kind, folder, commands[kind], reference)


def check(kind: str, folder: Path, words: list[str], reference: Path) -> None:
    """Continue where the kill struck, and hold the result against an undisturbed run."""
    if kind in ("run", "export", "tracker"):
        paths = runs(folder)
        if paths and json.loads((paths[-1] / "status.json").read_text())["state"] != "finished":
            ended = (paths[-1] / "checkpoints" / f"step_{STEPS:08d}").exists()  # Nothing is left to do then.
            finish(folder, "run", f"resume={paths[-1]}", codes=(0, 2) if ended else (0,))
        elif not paths:
            finish(folder, *words)
        result, expected = losses(runs(folder)[-1]), losses(reference)
        assert result.keys() == expected.keys(), (result, expected)
        assert all(abs(result[step] - expected[step]) < 2e-4 for step in expected), (result, expected)
        if kind == "export":
            assert list(runs(folder)[-1].glob("export/**/*.safetensors")), "no export"
        if kind == "tracker":
            finish(folder, "sync", str(runs(folder)[-1]), "--tracker=tensorboard")
    elif kind == "sweep":
        again = [*words, "--resume"] if list((folder / "runs").glob("*/sweep.json")) else words
        finish(folder, *again)
    elif kind == "rm":
        remaining = folder / "runs" / reference.name
        finish(folder, "rm", str(remaining), "--yes", "--force", codes=(0, 2))
        assert not remaining.exists() and not list((folder / "runs").glob(".*")), "something is left behind"
    else:
        finish(folder, *words, codes=(0, 1))  # The reference may have been slow: the machine is busy.
        for report in folder.glob("runs/*/report/report.json"):
            json.loads(report.read_text())


def main() -> int:
    """Command line; exit code 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long; a later call continues")
    parser.add_argument("--folder", type=Path, default=Path("kills"))
    parser.add_argument("--seed", default="1", help="of the random moments")
    parser.add_argument("--kinds", nargs="+", choices=sorted({*KINDS}), default=KINDS, help="what is killed, in turns")
    parser.add_argument("--cold", action="store_true", help="start every process anew, imports and all")
    chosen = parser.parse_args()
    if not chosen.cold:
        forked.warm()
    folder = chosen.folder.resolve()
    reference = folder / "reference"
    record = folder / "kills.jsonl"
    if not record.exists():
        shutil.rmtree(reference, ignore_errors=True)
        reference.mkdir(parents=True)
        finish(reference, "run", *RUN, "strategy=ddp")
        record.touch()
    status = json.loads((runs(reference)[-1] / "status.json").read_text())
    began, ended = (datetime.fromisoformat(status[name]) for name in ("started", "updated"))
    done: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
    ends_s = time.monotonic() + chosen.seconds
    for number in range(len(done), chosen.kills):
        if time.monotonic() > ends_s:
            break
        kind, whom, why = chosen.kinds[number % len(chosen.kinds)], WHOM[number % len(WHOM)], ""
        shutil.rmtree(folder / "kill", ignore_errors=True)
        try:
            moments = random.Random(f"{chosen.seed}/{number}")
            kill_and_check(moments, kind, whom, folder / "kill", runs(reference)[-1], (ended - began).total_seconds())
        except (AssertionError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as problem:
            why = str(problem)[:300] or type(problem).__name__
            shutil.copytree(folder / "kill", folder / f"lost-{number}", dirs_exist_ok=True, symlinks=True)
            print(f"kill {number} ({kind}, {whom}): {why}", flush=True)
        done.append({"number": number, "kind": kind, "whom": whom, "lost": why})
        with record.open("a") as lines:
            lines.write(json.dumps(done[-1]) + "\n")
    kinds = Counter(entry["kind"] for entry in done)
    lost = sum(bool(entry["lost"]) for entry in done)
    print(f"{len(done):,} kills, {lost} with a loss; {dict(kinds)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
