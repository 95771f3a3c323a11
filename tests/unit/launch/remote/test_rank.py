"""The first rank of a submitted job: what it takes from the frozen run, and what it refuses."""
# ruff: noqa: F811 - fixtures are imported

import json
import sys

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, read_status, write_json
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.launch.remote import rank
from dtk.launch.remote.rank import decide
from dtk.run import main
from tests.cli.command import TINY
from tests.cli.test_run_launcher import SLURM, here, no_programs, stand_in  # noqa: F401
from tests.unit.launch.conftest import as_rank


def test_ranks_run_what_was_composed_at_submission(here, no_programs, monkeypatch, capsys):
    """Later edits of the YAML files, and other files where the ranks start, change nothing."""
    stand_in(no_programs, "sbatch", 0)
    own = here / "mine" / "schedule"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("name: cosine\nwarmup_steps: 7\nmin_lr_ratio: 0.1\n")
    assert main([*SLURM, "--config-dir", str(here / "mine"), "schedule=mine"]) == 0
    (own / "mine.yaml").write_text("name: cosine\nwarmup_steps: 9\nmin_lr_ratio: 0.1\n")
    (folder,) = (here / "runs").iterdir()
    assert read_status(RunPaths(folder).status).state == "queued"
    as_rank(monkeypatch, 2)
    hydra = sys.modules.pop("hydra", None)
    try:
        shared = decide(folder, None, "torchrun")
        assert "hydra" not in sys.modules, "a rank composes nothing"
    finally:
        if hydra is not None:
            sys.modules["hydra"] = hydra
    assert shared.config["schedule"]["warmup_steps"] == 7
    assert (shared.attempt, shared.device, shared.backend) == (0, "cpu", "gloo")
    assert read_status(RunPaths(folder).status).state == "running"
    manifest = json.loads(RunPaths(folder).manifest.read_text())
    assert manifest["launcher"] == "slurm" and manifest["hardware"]["cores"] and manifest["submitted"]
    assert decide(folder, None, "torchrun").attempt == 1, "a requeue is the next attempt"


def test_a_job_with_other_ranks_than_submitted_is_refused(here, no_programs, monkeypatch, capsys):
    stand_in(no_programs, "sbatch", 0)
    assert main(SLURM) == 0
    (folder,) = (here / "runs").iterdir()
    as_rank(monkeypatch, 4)
    with pytest.raises(Exception, match="4 ranks, and was submitted for 2"):
        decide(folder, None, "torchrun")
    status = read_status(RunPaths(folder).status)
    assert (status.state, status.exit_code) == ("failed", 2) and "submitted for 2" in status.reason


def test_the_first_pod_makes_the_run_folder_of_the_config_map(here, monkeypatch, capsys):
    assert (
        main([*TINY, "strategy=ddp", "launcher=kubernetes", "launcher.image=x", "launcher.nproc=2", "--dry-run"]) == 0
    )
    config_map, work = yaml.safe_load_all(capsys.readouterr().out)
    frozen = here / "frozen"
    frozen.mkdir()
    for name, text in config_map["data"].items():
        (frozen / name).write_text(text)
    container = work["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "--frozen=/etc/dtk/run"
    as_rank(monkeypatch, 2)
    shared = decide(here / "volume" / "run", frozen, "torchrun")
    assert from_plain(shared.config) == from_plain(yaml.safe_load(config_map["data"]["config.yaml"]))
    assert read_status(here / "volume" / "run" / "status.json").state == "running"
    assert decide(here / "volume" / "run", frozen, "torchrun").attempt == 1, "the same manifest again continues"


def test_a_rank_that_no_cluster_started_is_one_line(here, capsys):
    assert rank.main([str(here / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtk: a rank of a submitted job starts under srun or torchrun") and error.count("\n") == 1


def test_the_configuration_comes_last_into_the_run_folder(here, monkeypatch):
    frozen, copied = here / "frozen", []
    frozen.mkdir()
    for name in ("config.yaml", "manifest.json", "a.json", ".hidden"):
        (frozen / name).write_text(name)
    copy = rank.shutil.copyfile
    monkeypatch.setattr(
        rank.shutil, "copyfile", lambda source, target: (copied.append(source.name), copy(source, target))
    )
    paths = RunPaths(here / "deep" / "run")
    rank._thaw(paths, frozen)
    assert copied == ["a.json", "manifest.json", "config.yaml"], "its presence says that the folder is whole"
    with pytest.raises(DtkError, match="cannot read"):
        rank._thaw(paths, here / "absent")
    (here / "file").write_text("")
    with pytest.raises(DtkError, match="cannot write"):
        rank._thaw(RunPaths(here / "file" / "run"), frozen)


def test_the_manifest_keeps_what_was_known_at_submission(here):
    paths = RunPaths(here / "run")
    paths.root.mkdir()
    write_json(paths.manifest, {"argv": ["dtk", "run"], "hardware": "of the login node", "submitted": {"job": "7"}})
    rank._write_manifest(paths, {"argv": ["rank"], "hardware": "of the node", "run_id": "run"})
    about = json.loads(paths.manifest.read_text())
    assert about == {"argv": ["dtk", "run"], "hardware": "of the node", "run_id": "run", "submitted": {"job": "7"}}
    paths.manifest.write_text("{")
    rank._write_manifest(paths, {"argv": ["rank"]})
    assert json.loads(paths.manifest.read_text()) == {"argv": ["rank"]}
