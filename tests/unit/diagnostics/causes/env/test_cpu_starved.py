"""`env.cpu_starved`: figures of a cgroup, an affinity and a hypervisor; and processes that really lack CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.contract.findings import SURE, text_of
from dtk.record.telemetry import ROOT
from tests.patience import stretched
from tests.unit.diagnostics.causes.nodes import decided, telemetry

ID = "env.cpu_starved"
QUOTA = {"cgroup_cores": 1.5, "cgroup_periods": (7000, 10), "cgroup_throttled_periods": (100, 6)}


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (QUOTA, "quota of 1.5 cores was used up in 60% of 590 periods"),
        ({"usable_cores": 1}, "2 ranks may run on 1 of 16 cores (affinity)"),
        ({"stolen_cpu_percent": 35.0}, "the hypervisor gave 35% of the CPU to other machines"),
    ],
)
def test_each_way_to_lack_cpu(tmp_path: Path, host: dict[str, object], words: str) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(host=[host]))
    finding = decided(tmp_path, ID)
    assert (finding.status, finding.ranks) == ("confirmed", (0, 1)) and words in text_of(finding).summary


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ({}, "ruled_out"),
        ({"usable_cores": 2}, "ruled_out"),  # One for each rank.
        ({**QUOTA, "cgroup_throttled_periods": (100, 1)}, "ruled_out"),
        ({**QUOTA, "cgroup_throttled_periods": 100}, "ruled_out"),  # Used up before this job.
        ({"usable_cores": None, "stolen_cpu_percent": 2.0}, "undecided"),
    ],
)
def test_enough_of_it(tmp_path: Path, host: dict[str, object], status: str) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(host=[host]))
    assert decided(tmp_path, ID).status == status


@pytest.mark.parametrize(
    ("cores", "gpus", "expected"),
    [
        ({"0": [0], "1": [0]}, {"0": 0, "1": 1}, (1,)),
        ({"0": [1], "1": [0]}, {"0": 0, "1": 1}, (0, 1)),
        ({"0": [0, 1], "1": [0, 1]}, {"0": 0, "1": 1}, ()),  # Not bound.
        ({"0": [0], "1": [1]}, {"0": 0, "1": 1}, ()),
        ({"0": [0], "1": [0]}, {"0": -1, "1": -1}, ()),  # The kernel does not know.
        ({"0": [0], "1": [0]}, {}, ()),
        ({"0": [], "1": []}, {"0": 0, "1": 1}, ()),
    ],
)
def test_cores_far_from_the_gpu_are_suspected(
    tmp_path: Path, cores: dict[str, list[int]], gpus: dict[str, int], expected: tuple[int, ...]
) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(host=[{"rank_numa_nodes": cores, "rank_gpu_numa_node": gpus}]))
    finding = decided(tmp_path, ID)
    assert finding.status == ("confirmed" if expected else "ruled_out")
    assert not expected or (finding.ranks == expected and finding.confidence < SURE)
    assert not expected or "not measured" in text_of(finding).summary


@pytest.mark.parametrize(
    ("waited_s", "gpus", "status"),
    [((0.4, 0.5), [{}, {}], "confirmed"), ((0.3, 0.1), [{}, {}], "ruled_out"), ((0.4, 0.5), [], "ruled_out")],
)
def test_main_threads_that_wait_for_a_core(
    tmp_path: Path, waited_s: tuple[float, float], gpus: list[dict[str, object]], status: str
) -> None:
    lines = [json.loads(line) for line in telemetry(gpus=gpus).splitlines()]
    for n, line in enumerate(lines[1:]):
        line["host"]["rank_core_wait_s"] = {"0": 7 + waited_s[0] * n, "1": waited_s[1] * n}
    (tmp_path / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    finding = decided(tmp_path, ID)
    assert finding.status == status
    assert (status == "confirmed") == ("waited for a core for 45% of the time" in text_of(finding).summary)


REAL = """
import json, os, sys
from pathlib import Path
own = sys.argv[2]
if own == "affinity":
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from dtk.record.telemetry import cpu_figures
if own != "affinity":
    Path(own, "tasks" if Path(own, "tasks").exists() else "cgroup.procs").write_text(str(os.getpid()))
samples, begin = [], cpu_figures().get("cgroup_periods", 0)
for n in range(2):
    samples.append({"kind": "sample", "time_s": 1e9 + n, "host": {"rank_rss_bytes": {"0": 1, "1": 1}, **cpu_figures()}})
    while own != "affinity" and cpu_figures()["cgroup_periods"] < begin + 110:
        pass
about = {"kind": "about", "every_s": 1.0, "cores": os.cpu_count()}
Path(sys.argv[1]).write_text("".join(json.dumps(line) + "\\n" for line in (about, *samples)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2, reason="needs two cores")
def test_ranks_that_really_share_a_core(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", REAL, tmp_path / "node_00000.jsonl", "affinity"], check=True, timeout=stretched(60)
    )
    finding = decided(tmp_path, ID)
    assert finding.status == "confirmed" and "on 1 of" in text_of(finding).summary


def test_a_quota_that_is_really_used_up(tmp_path: Path) -> None:
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip("others hold the CPU of this machine, so that a process does not reach its quota")
    group = ROOT / "cpu" / f"dtk_{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text("1000")
    except OSError as problem:
        pytest.skip(f"no cgroup can be made here: {problem}")
    try:
        subprocess.run(
            [sys.executable, "-c", REAL, tmp_path / "node_00000.jsonl", group], check=True, timeout=stretched(60)
        )
    finally:
        group.rmdir()
    last = json.loads((tmp_path / "node_00000.jsonl").read_text().splitlines()[-1])["host"]
    assert last["cgroup_cores"] == 0.1 and last["cgroup_throttled_periods"] > 10
    finding = decided(tmp_path, ID)
    assert finding.status == "confirmed" and "quota of 0.1 cores" in text_of(finding).summary
