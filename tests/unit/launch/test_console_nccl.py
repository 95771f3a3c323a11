"""What a run over NCCL says of its variables at its beginning and its end."""

import dataclasses
import json

import pytest

from diagnostics.contract.artifacts import RunPaths, Status
from dtk.config.batch import settle
from dtk.config.compose import compose
from dtk.config.placement import Placement
from dtk.launch.console import Console, banner, farewell
from dtk.nccl.presets import find_preset


@pytest.fixture(scope="module")
def config():
    return settle(compose([]), 2).config


@pytest.fixture
def opening(capsys, config, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))

    def banner_lines(name, backend="nccl", more=None, **keys):
        section = dataclasses.replace(find_preset(name).config, **keys)
        section = dataclasses.replace(section, variables={**section.variables, **(more or {})})
        placement = Placement(2, 2, "cuda" if backend == "nccl" else "cpu", backend, 1, 2, ())
        chosen = dataclasses.replace(config, nccl=section)
        banner(Console(), chosen, RunPaths(tmp_path), placement, 0)
        lines = capsys.readouterr().out.splitlines()
        at = [i for i, line in enumerate(lines) if line.startswith("  nccl")]
        return [line.strip() for line in lines[at[0] : -1]] if at else []

    return banner_lines


def test_what_is_set_and_what_of_the_users_wins(opening, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    (tmp_path / "nccl.conf").write_text("NCCL_IB_TIMEOUT=18\n")
    assert opening("infiniband", interface="eth0") == [
        "nccl      infiniband: NCCL_SOCKET_IFNAME==eth0",
        "your NCCL_DEBUG=INFO takes precedence (the preset has WARN)",
        f"your NCCL_IB_TIMEOUT=18 in {tmp_path / 'nccl.conf'} takes precedence (the preset has 22)",
    ]


def test_over_gloo_the_default_is_not_worth_a_line(opening):
    assert opening("auto", "gloo") == []
    assert opening("auto") == ["nccl      auto: NCCL_DEBUG=WARN"]
    assert opening("cpu_gloo", "gloo") == ["nccl      cpu_gloo: nothing to set"]


def test_a_slip_is_told_before_the_job_starts(opening):
    said = opening("auto", more={"NCCL_SHM_DISABLE": "true", "NCCL_SOCKET_IFNAM": "eth0"})
    assert said[1].startswith("NCCL_SHM_DISABLE=true: NCCL reads 'true' as the number 0")
    assert said[2].endswith("did you mean NCCL_SOCKET_IFNAME?")


def test_over_gloo_too(opening):
    said = opening("auto", "gloo", {"NCCL_QUUX": "abc"})
    assert said[1].startswith("NCCL_QUUX=abc: no public NCCL up to")


def test_the_farewell_tells_what_nccl_took_and_the_manifest_keeps_it(capsys, tmp_path):
    paths = RunPaths(tmp_path)
    paths.logs(0, 0).mkdir(parents=True)
    log = "n:1:1 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.\nn:1:1 [0] NCCL INFO Using network IB\n"
    (paths.logs(0, 0) / "stdout.log").write_text(log)
    section = {"backend": "nccl", "preset": "infiniband", "variables": {"NCCL_IB_TIMEOUT": "22"}, "kept": []}
    paths.manifest.write_text(json.dumps({"nccl": section}))
    farewell(Console(), paths, Status("finished", exit_code=0))
    assert capsys.readouterr().out.splitlines()[0] == "NCCL took: IB"
    kept = json.loads(paths.manifest.read_text())["nccl"]["effect"]["variables"]
    assert kept == {"NCCL_IB_TIMEOUT": {"wanted": "22", "got": ["22"], "state": "confirmed"}}
