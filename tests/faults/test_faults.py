"""Every fault really happens: the run ends as it must, by itself, with the evidence for a diagnosis."""

import json
import math

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths
from dtk.config.folders import conf_folder
from dtk.config.schema import KINDS
from dtk.faults.install import FAULTS
from tests.faults.runs import run_fault
from tests.faults.truth import TRUTH, marker

CASES = [pytest.param(name, marks=() if truth.ci else pytest.mark.extended) for name, truth in TRUTH.items()]
EXIT_CODES = {"hung": 1, "failed": 1, "oom": 1, "finished": 0}


@pytest.mark.parametrize("fault", CASES)
def test_it_happens(fault, fault_folder):
    truth, run = TRUTH[fault], run_fault(fault_folder, fault)
    status = run.status()
    assert run.exit_code == EXIT_CODES[truth.ending], run.out + run.error
    assert status["state"] == truth.ending, status
    assert "Traceback" not in run.out + run.error
    if truth.ending in ("failed", "oom"):
        assert status["failure"]["rank"] == truth.ranks[0]


@pytest.mark.parametrize("fault", [p for p in CASES if TRUTH[p.values[0]].ending == "hung"])
def test_no_step_after_the_fault_is_finished(fault, fault_folder):
    run = run_fault(fault_folder, fault)
    config = yaml.safe_load(RunPaths(run.path).config.read_text())
    assert run.status()["step"] <= config["fault"]["step"]


@pytest.mark.parametrize("fault", [p for p in CASES if TRUTH[p.values[0]].ending != "finished"])
def test_every_rank_leaves_a_trace(fault, fault_folder):
    """A killed rank too: what it did last outlives it. Its black box is first written after 0.2 s, the ring at once."""
    paths = RunPaths(run_fault(fault_folder, fault).path)
    for rank in range(json.loads(paths.manifest.read_text())["topology"]["world_size"]):
        assert paths.heartbeat(rank).is_file() and (paths.ring(rank).is_file() or paths.black_box(rank).is_file())


def test_nan_reaches_every_rank(fault_folder):
    paths = RunPaths(run_fault(fault_folder, "nan_on_one_rank").path)
    losses = [json.loads(line).get("loss") for line in paths.metrics.read_text().splitlines()]
    bad = [loss is not None and not math.isfinite(loss) for loss in losses]
    assert bad.index(True) == 3 and all(bad[3:10])


def test_each_fault_has_a_file_a_kind_and_a_truth():
    files = {path.stem for path in (conf_folder() / "fault").glob("*.yaml")}
    assert files == set(KINDS["fault"][1]) == {*TRUTH, "none"}
    assert set(FAULTS) < set(TRUTH)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_that_is_code_has_one_marked_line(fault):
    assert marker(fault)


@pytest.mark.parametrize("fault", TRUTH)
def test_each_file_says_what_is_seen_and_promises_the_diagnosis(fault):
    text = (conf_folder() / "fault" / f"{fault}.yaml").read_text()
    assert "\n# Seen: " in text
    assert f"\n# Diagnosis: {TRUTH[fault].causes[0]}" in text
