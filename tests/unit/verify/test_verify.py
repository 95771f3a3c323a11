"""What is read of a run before and after a remedy: its end, its terms, its figures, and which remedy is tried."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.runs.find import read_details
from dtk.config.compose import compose
from dtk.config.fault_checks import FaultConflictError
from dtk.errors import DtkError
from dtk.record.run_folder import describe
from dtk.verify.verify import BEYOND, STEPS, _figures, _run, _short, _step_of_end, _terms, verify
from tests.unit.diagnostics.report.samples import finding, report


def test_the_terms_are_those_of_the_runs_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("record: {level: full}\ntrain: {steps: 8}\n")
    assert _terms(tmp_path) == ("full", 8)
    (tmp_path / "config.yaml").write_text("record: [")
    assert _terms(tmp_path) == ("", None)


@pytest.mark.parametrize(
    ("state", "of_finding", "of_failure", "at"),
    [
        ("hung", 4, None, " in step 4"),
        ("failed", None, 5, " in step 5"),
        ("oom", None, None, " after step 3"),
        ("finished", 4, None, " after step 3"),
    ],
)
def test_a_step_is_called_as_in_the_diagnosis(
    tmp_path: Path, state: str, of_finding: int | None, of_failure: int | None, at: str
) -> None:
    failure = {"rank": 1, "reason": "it raised", "step": of_failure} if of_failure else None
    status = {"schema_version": 1, "state": state, "step": 3, "reason": "", "failure": failure}
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 1.0}) + "\n")
    diagnosed = report(finding("hang.host_stall", ranks=(1,), step=of_finding))
    assert _step_of_end(read_details(tmp_path), diagnosed) == at


def test_figures_come_from_the_records_and_the_measures(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("record: {level: full}\ntrain: {steps: 8}\n")
    (tmp_path / "status.json").write_text(
        json.dumps({"schema_version": 1, "state": "finished", "step": 5, "reason": ""})
    )
    speeds = [1.0, 2.0, 100.0, 110.0, None, 120.0]
    lines = [json.dumps({"step": i, "loss": 1.0, "tokens_per_s": speed}) for i, speed in enumerate(speeds)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    steps = [[{"exposed_ms": 2.0}, {"exposed_ms": 4.0}], [{"exposed_ms": 4.0}, {"exposed_ms": 8.0}]]
    measures = {
        "overlap": {"ranks": {str(rank): {"steps": of_rank} for rank, of_rank in enumerate(steps)}},
        "memory": {
            "ranks": {
                "0": {"peak_bytes": 100, "curve_of": "tensors"},
                "1": {"peak_bytes": 300, "curve_of": "window_tensors"},
                "2": {"peak_bytes": 900, "curve_of": "process"},
                "3": {"curve_of": "tensors"},
            }
        },
    }
    read = _figures(tmp_path, replace(report(finding("overlap.skew")), measures=measures))
    assert read.tokens_steps_per_s == (100.0, 110.0, 120.0), "without the first ones"
    assert read.exposed_steps_ms == (3.0, 6.0) and read.tensors_bytes == 300
    assert (read.causes, read.terms, read.state, read.at) == (
        ("overlap.skew",),
        ("full", 8),
        "finished",
        " after step 5",
    )


def test_a_run_without_records_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"schema_version": 1, "state": "failed", "step": 0, "reason": ""}))
    read = _figures(tmp_path, report(finding("hang.host_stall")))
    assert (read.tokens_steps_per_s, read.exposed_steps_ms, read.tensors_bytes) == ((), (), None)


def test_what_cannot_be_verified_is_one_line(tmp_path: Path) -> None:
    messages = {
        "not a dtk run": replace(report(finding("overlap.skew")), run_folder=None),
        "there is nothing to verify": replace(
            report(finding("overlap.skew")), run_folder=str(tmp_path), root_causes=()
        ),
    }
    for message, given in messages.items():
        with pytest.raises(DtkError, match=message):
            verify(given, lambda text: None)


def test_a_short_run_goes_beyond_the_step_that_failed(tmp_path: Path) -> None:
    status = {"schema_version": 1, "state": "failed", "step": 30, "failure": {"rank": 0, "reason": "", "step": 31}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    paths = RunPaths(tmp_path)
    assert _short(finding("hang.rank_raised", step=50), paths)[0] == f"train.steps={50 + BEYOND}"
    assert _short(finding("hang.rank_raised"), paths)[0] == f"train.steps={31 + BEYOND}"
    (tmp_path / "status.json").unlink()
    assert _short(finding("hang.rank_raised"), paths)[0] == f"train.steps={STEPS}"


def test_a_remedy_that_leaves_no_place_for_the_fault_is_told_by_its_type(tmp_path: Path) -> None:
    typed = ["model=gpt2_tiny", "data=synthetic", "fault=branch", "strategy=fsdp", "launcher.nproc=2"]
    composed = compose([*typed, "launcher.device=cpu"])
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir(mode=0o755)
    describe(paths, {"schema_version": 1}, composed.plain, composed.overrides, composed.origins)
    with pytest.raises(FaultConflictError, match="fault=branch cannot happen under strategy=ddp"):
        _run(["strategy=ddp"], paths)
    with pytest.raises(DtkError) as refused:
        _run(["train.global_batch_size=7"], paths)
    assert not isinstance(refused.value, FaultConflictError) and not paths.verify.exists()


def test_what_a_remedy_repeats_of_the_folder_is_not_typed_by_the_user(tmp_path: Path) -> None:
    composed = compose(["model=gpt2_tiny", "data=synthetic", "strategy=fsdp", "launcher.nproc=2"])
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir(mode=0o755)
    describe(paths, {"schema_version": 1}, composed.plain, composed.overrides, composed.origins)
    with pytest.raises(DtkError, match=r"its nccl\.variables\.NCCL_NET_PLUGIN names a path"):
        _run(["nccl.variables.NCCL_NET_PLUGIN=/tmp/evil.so"], paths)
    assert not paths.verify.exists()
