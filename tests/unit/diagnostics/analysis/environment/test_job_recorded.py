"""Variables, versions and the machine as manifest, configuration and logs tell them."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.environment.job import CONFIGURATION, Source, echoes_as, interfaces, recorded
from diagnostics.evidence.job.assign_ranks import ALL_RANKS
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, RunEvidence
from tests.unit.diagnostics.analysis.calls import fact


def evidence(*facts: LogFact, run: RunEvidence | None = None, **environment: dict[str, str]) -> Evidence:
    by_rank = {ALL_RANKS if name == "all" else int(name[1:]): own for name, own in environment.items()}
    return Evidence(Path(), Limits(), facts=list(facts), environment=by_rank, run=run)


def run(config: dict[str, Any] | None = None, **manifest: Any) -> RunEvidence:
    return RunEvidence(Path("run"), None, config or {}, manifest, {}, {}, {}, {})


def test_variables_of_all_ranks_hold_for_each_and_its_own_win() -> None:
    result = recorded(evidence(all={"NCCL_NET": "IB", "NCCL_ALGO": "Ring"}, r2={"NCCL_NET": "Socket"}))
    assert result.variables == {
        ALL_RANKS: {"NCCL_NET": "IB", "NCCL_ALGO": "Ring"}, 2: {"NCCL_NET": "Socket", "NCCL_ALGO": "Ring"},
    }  # fmt: skip
    assert result.value("NCCL_NET", (2,)) == "Socket" and result.value("NCCL_NET", (1,)) == "IB"
    assert result.value("NCCL_X", ()) == "" and result.count == 2 and result.complete


def test_what_a_log_echoes_is_no_whole_environment() -> None:
    echo = fact("nccl_env", 0, line=7, name="NCCL_BUFFSIZE")
    result = recorded(evidence(echo, r0={"NCCL_BUFFSIZE": "8388608"}))
    assert not result.complete and result.source("NCCL_BUFFSIZE", (0,)) == Source("train.log", 7)
    assert result.source("NCCL_NET", (0,)) == Source("environment", None)


def test_the_configuration_counts_where_the_environment_only_repeats_it() -> None:
    config = {"nccl": {"variables": {"NCCL_NET": "IB", "NCCL_SOCKET_IFNAME": "{interface}", "NCCL_ALGO": "Ring"}}}
    environment = {"NCCL_NET": "IB", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_ALGO": "Tree"}
    result = recorded(evidence(run=run(config, environment=environment)))
    assert result.variables[ALL_RANKS] == environment and result.complete
    files = {name: result.source(name, ()).file for name in environment}
    assert files == {"NCCL_NET": CONFIGURATION, "NCCL_SOCKET_IFNAME": "manifest.json", "NCCL_ALGO": "manifest.json"}


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [("0x10", "16", True), ("1k", "1", True), ("3", "PHB", True), ("IB", "IB", True), ("IB", "Socket", False)],
)
def test_logs_print_numbers_and_levels_as_they_were_parsed(text: str, other: str, same: bool) -> None:
    assert echoes_as(text, other) == same


def test_a_version_counts_only_where_all_lines_agree() -> None:
    log_fact, other = fact("nccl_version", version="2.27.3"), fact("nccl_version", version="2.20")
    assert recorded(evidence(log_fact, log_fact)).nccl_version == (2, 27, 3)
    assert recorded(evidence(log_fact, other)).nccl_version is None
    assert recorded(evidence(fact("nccl_version", version="unknown"))).nccl_version is None


@pytest.mark.parametrize(("nodes", "expected"), [(4, 4), ("4", None), (True, None), (None, None)])
def test_nodes_are_those_of_the_manifest(nodes: object, expected: int | None) -> None:
    assert recorded(evidence(run=run(topology={"nodes": nodes, "nproc": 8}))).nnodes == expected
    assert recorded(evidence(run=run(topology="two"))).nnodes is None


def test_hardware_is_completed_by_the_cards_that_nccl_lists() -> None:
    listed = fact("nccl_ib", 0, devices="[0]mlx5_0:1/IB [1]mlx5_3:1/IB")
    result = recorded(evidence(listed, run=run(hardware={"gpus": []}, topology={"nproc": 8})))
    assert result.hardware == {"gpus": [], "nproc": 8, "infiniband": ["mlx5_0", "mlx5_3"]}
    expected = recorded(evidence(listed, run=run(hardware={"infiniband": ["mlx5_9"]})))
    assert expected.hardware["infiniband"] == ["mlx5_9"]
    assert recorded(evidence()).hardware == {}


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        ({"backend": "gloo"}, "gloo"),
        ({"backend": "auto", "device": "cpu"}, "gloo"),
        ({"backend": "auto", "device": "cuda"}, "nccl"),
        ({}, None),
    ],
)
def test_the_backend_is_what_the_run_asked_for(launcher: dict[str, str], backend: str | None) -> None:
    assert recorded(evidence(run=run({"launcher": launcher}))).backend == backend
    assert recorded(evidence(fact("nccl_init", 0), run=run({"launcher": launcher}))).backend == "nccl"
    assert recorded(evidence()).backend is None


def test_names_of_interfaces_in_a_line_of_nccl() -> None:
    assert interfaces("[0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>") == ["eth0", "docker0"]
