"""A job before its launch: composed, placed, and refused where it could not run."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.config.compose import compose
from dtk.config.trust import MASK
from dtk.errors import DtkError
from dtk.launch.prepare import compose_point, cuda_devices, manifest_of, place_point, rank_variables, settle_point
from dtk.nccl.render import Rendered

TINY = ["model=gpt2_tiny", "strategy=ddp", "launcher.device=cpu"]
SMALL = ("model=gpt2_tiny", "nccl.variables={NCCL_DEBUG: WARN, NCCL_TOPO_FILE: '{run}/topo.xml'}")


def test_a_new_run_continues_nothing() -> None:
    point = compose_point(TINY, None)
    assert (point.paths, point.attempt, point.earlier) == (None, 0, None)
    assert point.composed.origins.choices["strategy"].by == "strategy=ddp", "who set what is recorded"


def test_a_run_here_is_placed_and_its_batch_divided() -> None:
    point, placement = place_point(compose_point([*TINY, "launcher.nproc=2"], None))
    assert (placement.nproc, placement.device, placement.backend) == (2, "cpu", "gloo")
    assert point.composed.config.train.micro_batch_size == 4
    assert compose_point([*TINY, "nccl=gcp_a3_high"], None).composed.plain["nccl"]["about"]
    assert point.composed.plain["nccl"]["about"] == {}, "the reasons for variables stay in conf/"


def test_a_job_elsewhere_is_placed_by_its_configuration_alone() -> None:
    point, placement = place_point(compose_point([*TINY, "launcher=slurm", "launcher.nodes=2"], None))
    assert placement.nproc == 2 and point.composed.config.train.micro_batch_size == 2


def test_epochs_are_counted_and_ranks_checked() -> None:
    typed = [*TINY, "data=synthetic", "data.samples=100", "data.validation_fraction=0.2", "train.epochs=2"]
    point, _ = place_point(compose_point([*typed, "launcher.nproc=1"], None))
    assert point.composed.config.train.steps == 20
    with pytest.raises(DtkError, match="but this run has 1 rank"):
        place_point(compose_point([*typed, "launcher.nproc=1", "launcher.world_size=2"], None))


def test_a_manifest_names_the_data_the_attempts_and_the_run_that_it_repeats(tmp_path: Path) -> None:
    point, placement = place_point(compose_point([*TINY, "launcher.nproc=2"], None))
    paths, nccl = RunPaths(tmp_path / "new"), Rendered("auto", {"NCCL_DEBUG": "WARN"}, ())
    about = manifest_of(point, paths, {"sha256": "a"}, placement, "local", nccl)
    assert (about["run_id"], about["data"], about["earlier_argv"]) == ("new", {"sha256": "a"}, [])
    assert about["nccl"]["variables"] == {"NCCL_DEBUG": "WARN"} and "rerun_of" not in about
    elsewhere = manifest_of(replace(point, earlier=tmp_path / "old"), paths, None, placement, "slurm", nccl)
    assert "data" not in elsewhere and (elsewhere["rerun_of"], elsewhere["launcher"]) == ("old", "slurm")
    paths.root.mkdir()
    write_json(paths.manifest, {**about, "argv": ["dtk", "run"], "earlier_argv": [["first"]]})
    resumed = replace(point, paths=paths, attempt=1)
    again = manifest_of(resumed, paths, {"sha256": "a"}, placement, "local", nccl)
    assert again["earlier_argv"] == [["first"], ["dtk", "run"]]
    with pytest.raises(DtkError, match="the data has changed"):
        manifest_of(resumed, paths, {"sha256": "b"}, placement, "local", nccl)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["train.global_batch_size=9", "launcher.nproc=2"], "cannot be split over 2 ranks"),
        (
            ["model=custom", "model._target_=no_such.Model", "allow_targets=[no_such.*]", "launcher.nproc=1"],
            "cannot be imported",
        ),
        (["model=custom", "model._target_=os.system", "launcher.nproc=1"], "is not allowed"),
        (["nccl=tcp_ethernet", "launcher.nproc=2"], "nccl"),
        (["tracker=wandb", f"tracker.project={MASK}", "launcher.nproc=1"], "tracker.project was masked"),
    ],
)
def test_what_could_not_run_is_one_line(typed: list[str], message: str) -> None:
    with pytest.raises(DtkError) as caught:
        place_point(compose_point([*TINY, *typed], None))
    assert message in str(caught.value)


def test_a_port_that_is_taken_is_one_line() -> None:
    with pytest.raises(DtkError, match=r"launcher\.master_port=1 cannot be used|^$"):
        point = compose_point([*TINY, "launcher.nproc=1", "launcher.master_port=1"], None)
        place_point(point)
        raise DtkError("")  # This user may listen on every port.


def test_ranks_that_others_started_are_settled_as_they_are(tmp_path: Path) -> None:
    point = compose_point(TINY, None)
    _, placement = place_point(compose_point([*TINY, "launcher.nproc=1"], None))
    assert settle_point(point, replace(placement, world_size=8)).composed.config.train.micro_batch_size == 1


def test_no_device_is_looked_for_where_none_is_wanted() -> None:
    assert cuda_devices("cpu") == 0


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
