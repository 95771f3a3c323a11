"""The diagnosis below the line that says that a run failed."""

from pathlib import Path

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from dtk.launch.diagnosis import explanation


def test_a_folder_with_a_cause_is_explained_and_others_are_not(tmp_path: Path) -> None:
    assert explanation(RunPaths(tmp_path / "absent"), terminal=False) == ""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    write_json(paths.manifest, {"schema_version": 1, "run_id": "run", "topology": {"world_size": 2}})
    failure = Failure(1, "killed by SIGKILL", step=3, exit_code=-9, victims=[0], kind="killed", signal="SIGKILL")
    write_json(paths.status, Status(state="failed", exit_code=1, failure=failure))
    text = explanation(paths, terminal=False)
    assert "hang.rank_killed" in text and "rank 1" in text and not text.endswith("\n")
    write_json(paths.status, Status(state="finished", exit_code=0))
    assert explanation(paths, terminal=False) == ""
