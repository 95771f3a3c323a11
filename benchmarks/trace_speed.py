"""Speed of reading traces: dtk's overlap analysis of 8 ranks beside HolisticTraceAnalysis and the parser's own limit.

Use: python benchmarks/trace_speed.py TRACE.json.gz [--hta-python PYTHON] [--rounds 3]
TRACE is copied to 8 ranks. PYTHON is an interpreter with HolisticTraceAnalysis==0.5.0 (and pandas<3); without it
only dtk is measured. Sides take turns, each round in a fresh process; CPU seconds and peak memory include the
processes that a side starts. Both sides find their bytecode compiled, as that of an installed package is.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

RANKS = 8
ROOT = Path(__file__).resolve().parents[1]

DTK = """
import sys
from pathlib import Path
from diagnostics.causes.registry import Registry, built_in
from diagnostics.diagnose import decide
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
if __name__ == "__main__":
    causes = tuple(cause for cause in built_in() if cause.id.startswith("overlap."))
    evidence = gather(Path(sys.argv[1]), Limits())
    ranks = decide(Registry(causes), evidence, lambda text: None)[1]["overlap"]["ranks"]
    print({rank: measures["hta"]["overlap_percent"] for rank, measures in ranks.items()})
"""
HTA = """
import logging, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_temporal_breakdown(visualize=False)
    print(dict(zip(overlap["rank"], overlap["comp_comm_overlap_pctg"])))
"""
PARSER = """
import sys
from pathlib import Path
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.trace.model import Event
from diagnostics.evidence.trace.scan import Scan
if __name__ == "__main__":
    print(sum(len(batch) for path in Path(sys.argv[1]).iterdir() for batch in Scan(path, Limits(), Event).batches()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta-python", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sides = {"dtk": (sys.executable, DTK), "parser alone": (sys.executable, PARSER)}
    if arguments.hta_python:
        sides["HTA 0.5.0"] = (str(arguments.hta_python), HTA)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as bytecode:
        raw_mb = copies(arguments.trace, Path(folder))
        print(f"{RANKS} ranks x {raw_mb:.1f} MB of JSON, {os.cpu_count()} cores, {arguments.rounds} rounds")
        measure(*sides["dtk"], folder, bytecode)  # compiles, and is not counted
        seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for number in range(arguments.rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seen[name].append(measure(*sides[name], folder, bytecode))
    report({name: tuple(map(median, zip(*rounds))) for name, rounds in seen.items()}, raw_mb)


def copies(trace: Path, folder: Path) -> float:
    """Write one copy of the trace per rank and return its decompressed size in MB."""
    data = trace.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    value = json.loads(text)
    for rank in range(RANKS):
        value["distributedInfo"] = {**value.get("distributedInfo", {}), "rank": rank, "world_size": RANKS}
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(value, indent=1).encode(), 6))
    return len(json.dumps(value, indent=1)) / 1e6


def measure(python: str, program: str, folder: str, bytecode: str) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak MB of a program and all its processes."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "side.py"
        script.write_text(program)
        # The other one has its bytecode beside its packages, from their installation.
        variables = {"PYTHONPYCACHEPREFIX": bytecode} if python == sys.executable else {}
        return timed(python, [str(script), folder], variables)[1]


def timed(
    python: str, arguments: list[str], variables: dict[str, str] | None = None
) -> tuple[str, tuple[float, float, float]]:
    """Run a script; return its output, and CPU seconds, wall seconds and peak MB of it and all its processes."""
    wrapped = (
        "import os, resource, subprocess, sys, time\n"
        "begin = time.time()\n"
        "done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, check=True)\n"
        "use = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "sys.stdout.buffer.write(done.stdout)\n"
        "print('', use.ru_utime + use.ru_stime, time.time() - begin, use.ru_maxrss / 1024, sep='\\t')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [python, "-c", wrapped, *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    output, cpu_s, wall_s, peak_mb = done.stdout.rsplit("\t", 3)
    return output, (float(cpu_s), float(wall_s), float(peak_mb))


def report(medians: dict[str, tuple[float, ...]], raw_mb: float) -> None:
    print(f"{'side':14}{'CPU s':>8}{'wall s':>8}{'MB/CPU s':>10}{'peak MB of one process':>24}")
    for name, (cpu_s, wall_s, peak_mb) in medians.items():
        print(f"{name:14}{cpu_s:8.2f}{wall_s:8.2f}{RANKS * raw_mb / cpu_s:10.0f}{peak_mb:24.0f}")
    if "HTA 0.5.0" in medians:
        (cpu_s, _, peak_mb), (their_cpu_s, _, their_mb) = medians["dtk"], medians["HTA 0.5.0"]
        print(f"CPU time of dtk: 1/{their_cpu_s / cpu_s:.1f} of HTA's (aim: 1/12)")
        print(f"memory of dtk: 1/{their_mb / peak_mb:.1f} of HTA's (aim: 1/3)")


if __name__ == "__main__":
    main()
