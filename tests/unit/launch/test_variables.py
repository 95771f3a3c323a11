"""What the ranks find in their environment, by every way to start them."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.launch.variables import rank_variables

SMALL = ("model=gpt2_tiny", "nccl.variables={NCCL_DEBUG: WARN, NCCL_TOPO_FILE: '{run}/topo.xml'}")


@pytest.fixture(autouse=True)
def no_own_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_of_one_machine_talk_over_loopback_and_record(tmp_path: Path) -> None:
    config, paths = compose([*SMALL]).config, RunPaths(tmp_path)
    own = rank_variables(config, paths, {"NCCL_DEBUG": "INFO"}, threads=3, one_machine=True)
    assert own["OMP_NUM_THREADS"] == "3" and own["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert own["TORCH_FR_BUFFER_SIZE"] == str(config.record.flight_entries)
    assert own["NCCL_TOPO_FILE"] == f"{tmp_path}/topo.xml"
    assert "NCCL_DEBUG" not in own, "the user's own value stays"
    several = rank_variables(config, paths, {})
    assert several.keys() == own.keys() - {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} | {
        "NCCL_DEBUG"
    }


@pytest.mark.parametrize("here", [None, {}])
def test_a_deterministic_run_is_one_whoever_starts_its_ranks(here: dict[str, str] | None, tmp_path: Path) -> None:
    """torch refuses cuBLAS in a deterministic run without it, also under torchrun and srun."""
    config = compose([*SMALL, "train.deterministic=true"]).config
    assert rank_variables(config, RunPaths(tmp_path), here)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in rank_variables(compose([*SMALL]).config, RunPaths(tmp_path), here)


def test_what_depends_on_a_machine_is_left_to_ranks_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # Of the machine that submits.
    elsewhere = rank_variables(compose([*SMALL]).config, RunPaths(tmp_path), None)
    assert elsewhere == {"NCCL_DEBUG": "WARN", "NCCL_TOPO_FILE": f"{tmp_path}/topo.xml"}


def test_a_preset_that_lacks_a_key_is_refused_by_both(tmp_path: Path) -> None:
    config = compose(["model=gpt2_tiny", "nccl.variables={NCCL_SOCKET_IFNAME: '{interface}'}"]).config
    for here in (None, {}):
        with pytest.raises(DtkError, match=r"nccl\.interface"):
            rank_variables(config, RunPaths(tmp_path), here)
