"""Diagnoses very many jobs with absurd values in valid files, and counts what escapes.

Run it: `nice -n 15 python benchmarks/fuzz_records.py --inputs 1000000 --seed 1 --record fuzz.json`. A later call with
the same record continues where this one ended. An input is named by its seed and number: `--only NUMBER` repeats it and
keeps its files.
"""

import argparse
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diagnostics import diagnose
from diagnostics.causes import registry
from diagnostics.contract.files import replacing
from diagnostics.evidence import budget
from tests.fuzz.records import RENDERERS, drawn, edited, explained, write

RENDERED = 16
"""One input of so many has its report rendered, which takes longer than the diagnosis."""
MOST_MEMORY_BYTES = 6 << 30
"""Of address space: an input that takes more ends in a MemoryError here, and not the whole machine."""
SAVED_EVERY = 500
"""Inputs between two writes of the record."""


def remember() -> None:
    """Do once what `dtk diagnose` does once, and what is the same for every input of this process."""
    registry._is_any_installed = cache(registry._is_any_installed)
    built_in = diagnose._trees((), registry.collect())
    diagnose._trees = lambda files, registered: built_in
    if Path("/proc/self/statm").exists():
        statm, page_bytes = os.open("/proc/self/statm", os.O_RDONLY), os.sysconf("SC_PAGE_SIZE")
        budget.resident_bytes = lambda: int(os.pread(statm, 200, 0).split()[1]) * page_bytes


def fuzz_job(seed: str, number: int, kept: Path | None = None) -> str:
    """Return what escaped from one input; its files go to `kept`."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    write(edited(*drawn(f"{seed}/{number}")), folder)
    escape = explained(folder, number // RENDERED % len(RENDERERS) if number % RENDERED == 0 else len(RENDERERS))
    if kept:
        shutil.copytree(folder, kept, dirs_exist_ok=True)
    shutil.rmtree(folder)
    return escape


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--record", type=Path, help="file that says how far it is and what escaped")
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"  # Each input is a folder, made and removed.
    remember()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    if chosen.only is not None:
        print(fuzz_job(chosen.seed, chosen.only, Path(f"fuzz-{chosen.seed}-{chosen.only}")) or "nothing escaped")
        return 0
    state: dict[str, Any] = {"seed": chosen.seed, "inputs": 0, "processor_s": 0.0, "slowest_s": 0.0, "escapes": []}
    if chosen.record and chosen.record.exists():
        state = json.loads(chosen.record.read_text())
    began_s, places = time.monotonic(), {escape.rpartition(" at ")[2] for _, escape in state["escapes"]}
    gc.collect()
    gc.freeze()
    for number in range(state["inputs"], chosen.inputs):
        used_s = time.process_time()
        escape = fuzz_job(state["seed"], number)
        used_s = time.process_time() - used_s
        if escape:
            state["escapes"].append((number, escape))
            if (place := escape.rpartition(" at ")[2]) not in places:
                places.add(place)
                print(f"seed {state['seed']}, input {number}: {escape}", flush=True)
        state |= {"inputs": number + 1, "processor_s": state["processor_s"] + used_s}
        state["slowest_s"] = max(state["slowest_s"], used_s)
        ended = time.monotonic() - began_s > chosen.seconds
        if chosen.record and (ended or number % SAVED_EVERY == 0 or number + 1 == chosen.inputs):
            with replacing(chosen.record) as aside:
                aside.write_text(json.dumps(state))
        if ended:
            break
    rate = state["inputs"] / max(state["processor_s"], 1e-9)
    print(
        f"{state['inputs']:,} inputs, seed {state['seed']}: {len(state['escapes'])} escapes at {places or 'no place'}, "
    )
    print(f"slowest {state['slowest_s']:.1f} s, {rate:.0f} per second of processor time")
    return 1 if state["escapes"] else 0


if __name__ == "__main__":
    sys.exit(main())
