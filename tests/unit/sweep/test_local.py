"""A random search on this machine: proposed, checked, run, recorded, gone on with; launching itself is stood in for."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from dtk.commands.main import main
from dtk.sweep import local
from tests.unit.sweep.files import RANDOM, write
from tests.unit.sweep.launches import Launches

pytestmark = pytest.mark.skipif(find_spec("sweeps") is None, reason="the extra sweeps is not installed")
CONTENT = {**RANDOM, "run_cap": 5, "parameters": {"train.micro_batch_size": {"values": [3, 4]}}}


@pytest.fixture
def launches(tmp_path, monkeypatch):
    result = Launches(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(local, "run_point", result)
    # The sweep's id seeds what it proposes. Only that module's: what the search imports asks the clock as well.
    monkeypatch.setattr("dtk.sweep.folder.secrets", SimpleNamespace(token_hex=lambda _: "0000"))
    monkeypatch.setattr("dtk.sweep.folder.time", SimpleNamespace(strftime=lambda _: "20260101-000000"))
    return result


def sweep(tmp_path, content, *arguments):
    return main(["sweep", str(write(tmp_path, content)), f"runs_folder={tmp_path / 'runs'}", *arguments])


def test_points_that_do_not_fit_are_recorded_and_the_search_goes_on(tmp_path, launches, capsys):
    launches.losses = {0: 3.0, 1: 2.0}
    assert sweep(tmp_path, CONTENT) == 2
    out, error = capsys.readouterr()
    refused = error.count("dtk: ")
    assert refused and launches.seen and refused + len(launches.seen) == 5
    assert "tracker=wandb of the file is only used by W&B's agent" in out
    assert "to continue with the remaining" not in out, "it would refuse the same again"
    assert out.splitlines()[out.splitlines().index("by loss (minimize), best first") + 2].split()[0] == "2"
    before = len(launches.seen)
    assert sweep(tmp_path, CONTENT, "--resume") == 0
    assert len(launches.seen) == before, "nothing was left to do"


def test_a_target_that_is_reached_ends_it_and_resume_proposes_no_more(tmp_path, launches, capsys):
    content = {**CONTENT, "metric": {"name": "loss", "goal": "minimize", "target": 2.5}}
    launches.losses = {0: 3.0, 1: 2.0}
    content["parameters"] = {"seed": {"min": 1, "max": 10**6}}
    assert sweep(tmp_path, content) == 0
    assert len(launches.seen) == 2
    assert "loss has reached its target 2.5" in capsys.readouterr().out
    assert sweep(tmp_path, content, "--resume") == 0
    assert len(launches.seen) == 2


def test_ctrl_c_and_resume_propose_what_they_would_have(tmp_path, launches):
    content = {**CONTENT, "run_cap": 4, "parameters": {"seed": {"min": 1, "max": 10**6}}}
    launches.ends = {1: "preempted"}
    assert sweep(tmp_path, content) == 130
    assert sweep(tmp_path, content, "--resume") == 0
    assert launches.seeds[1] == launches.seeds[2] and len(set(launches.seeds)) == 4
