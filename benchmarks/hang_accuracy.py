"""Cause and ranks for the shared flight-recorder dumps beside their truth, and what torchfrtrace says about them.

python benchmarks/hang_accuracy.py [--dumps FOLDER]   (default: shared/data/flight beside the repository)

The dumps alone cannot tell an exception, a sleep or an unrecorded recv on one rank apart: there the rank counts,
and `host_stall` (its host is outside any recorded collective) is accepted. The last column is torchfrtrace of the
installed torch on the same dumps after repairing gloo's `pg_config`, without which it ends in a KeyError.
"""

import argparse
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnostics.causes.registry import Registry, built_in
from diagnostics.contract.findings import Finding
from diagnostics.diagnose import decide
from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.model import Evidence, rank_in_name
from diagnostics.evidence.readers.flight import FlightFile, recognise

TRUTH: dict[str, tuple[set[str], set[int]]] = {
    "gloo/missing": ({"conditional_collective"}, {2}),
    "gloo/missing0": ({"conditional_collective"}, {0}),
    "gloo/type": ({"collective_mismatch"}, {1}),
    "gloo/type0": ({"collective_mismatch"}, {0}),
    "gloo/shape": ({"signature_mismatch"}, {3}),
    "gloo/dtype": ({"signature_mismatch"}, {3}),
    "gloo/order2pg": ({"group_order"}, {0, 1}),
    "gloo/p2p": ({"p2p_cycle"}, {0, 1, 2, 3}),
    "gloo/p2p_missing": ({"p2p_cycle", "host_stall"}, {0}),
    "gloo/sub": ({"conditional_collective"}, {1}),
    "gloo/exc": ({"rank_raised", "host_stall"}, {3}),
    "gloo/steps": ({"uneven_iterations"}, {1}),
    "gloo/obj": ({"collective_mismatch"}, {2}),
    "gloo/src": ({"signature_mismatch"}, {2}),
    "gloo/coal": ({"conditional_collective"}, {1}),
    "gloo/rs": ({"conditional_collective"}, {1}),
    "gloo/op": (set(), set()),
    "gloo/straggler": ({"straggler", "host_stall"}, {2}),
    "gpu_error_2nd": ({"device_stall"}, {9, 14}),
    "lock_gil_1st": ({"host_stall"}, {9, 14}),
}
"""Accepted causes and the exact ranks. `op` completes and is wrong in silence: nothing must be blamed."""


def dtk(folder: Path) -> list[Finding]:
    """Return the confirmed causes."""
    limits = Limits()
    paths = [path for path in sorted(folder.iterdir()) if recognise(head(path))]
    files = [FlightFile(path, path.name, rank_in_name(path), limits) for path in paths]
    causes = tuple(cause for cause in built_in() if cause.id.startswith("hang."))
    findings, _ = decide(Registry(causes), Evidence(folder, limits, files={"flight": files}), lambda _: None)
    return [finding for finding in findings if finding.status == "confirmed"]


def verdict(findings: list[Finding], causes: set[str], ranks: set[int]) -> str:
    """`right`, `undecided` or `wrong`."""
    if not findings:
        return "right" if not causes else "undecided"
    right = all(finding.cause.removeprefix("hang.") in causes and set(finding.ranks) == ranks for finding in findings)
    return "right" if right else "wrong"


def torchfrtrace(folder: Path) -> str:
    """Return the ranks that PyTorch's analyzer names, or how the analyzer ended."""
    with tempfile.TemporaryDirectory() as name:
        repaired = Path(name)
        dumps = {}
        for path in sorted(folder.iterdir()):
            if not path.suffix and recognise(head(path)):
                dumps[rank_in_name(path)] = pickle.loads(path.read_bytes())  # noqa: S301 - this project's own dumps
        world = max(rank or 0 for rank in dumps) + 1
        for rank, dump in dumps.items():
            repair(dump, world)
            (repaired / f"tr_{rank}").write_bytes(pickle.dumps(dump))
        command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(repaired), "--prefix", "tr_"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    text = result.stdout + result.stderr
    if result.returncode:
        return f"ends with {text.strip().splitlines()[-1][:60]}"
    named: set[int] = set()
    for ranks in re.findall(r"Culprit rank (\d+)|missing ranks: \{([\d, ]+)\}", text):
        named.update(int(rank) for part in ranks for rank in re.findall(r"\d+", part))
    kinds = dict.fromkeys(re.findall(r"Error type: (\w+)", text))
    reports = len(re.findall(r"Error type|missing ranks", text))
    if not named:
        return "nothing"
    return f"{sorted(named)} {', '.join(kinds) or 'missing'}" + (f" ({reports} reports)" if reports > 1 else "")


def repair(dump: dict[str, object], world: int) -> None:
    """Give gloo's nameless `pg_config` the groups that the entries name, each with all ranks where nothing is known."""
    config = dump["pg_config"]
    entries = dump.get("entries")
    if not isinstance(config, dict) or not isinstance(entries, list) or "" not in config:
        return
    pairs = {tuple(entry["process_group"]) for entry in entries} | {("0", "default_pg")}
    members = {name: list(range(world)) if name == "0" else [0, 1] for name, _ in pairs}
    dump["pg_config"] = {name: {"name": name, "desc": desc, "ranks": str(members[name])} for name, desc in pairs}


def check_folder(parser: argparse.ArgumentParser, option: str, folder: Path, entry: str) -> None:
    """End with one line and exit code 2 if a folder does not hold the data that an option names."""
    if not (folder / entry).exists():
        parser.error(f"{folder} holds no {entry}: name the folder of the data with {option} FOLDER")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "flight"
    parser.add_argument("--dumps", type=Path, default=default)
    options = parser.parse_args()
    check_folder(parser, "--dumps", options.dumps, next(iter(TRUTH)))
    print("| set | ranks to blame | dtk | ranks blamed | verdict | torchfrtrace |\n|---|---|---|---|---|---|")
    counts: dict[str, int] = {}
    for name, (causes, ranks) in TRUTH.items():
        findings = dtk(options.dumps / name)
        answer = verdict(findings, causes, ranks)
        counts[answer] = counts.get(answer, 0) + 1
        culprits = sorted({rank for finding in findings for rank in finding.ranks})
        what = ", ".join(finding.cause for finding in findings) or "nothing confirmed"
        print(
            f"| {name} | {sorted(ranks)} | {what} | {culprits} | {answer} | {torchfrtrace(options.dumps / name)} |",
            flush=True,
        )
    print(f"\n{len(TRUTH)} sets: " + ", ".join(f"{count} {answer}" for answer, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
