"""`dtk run launcher=...` where there is no cluster: --dry-run, one line for what is missing, frozen runs read again."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.config.strict import from_plain
from dtk.launch.remote.rank import decide
from dtk.run import main
from tests.cli.command import ROOT, TINY

SLURM = [*TINY, "strategy=ddp", "launcher=slurm", "launcher.nodes=2", "launcher.nproc=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def no_programs(monkeypatch, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    return empty


@pytest.mark.parametrize(
    "launcher",
    [
        ["launcher=slurm", "launcher.nodes=2", "launcher.nproc=1"],
        ["launcher=kubernetes", "launcher.image=x", "launcher.nproc=2"],
        ["launcher=skypilot", "launcher.nproc=2"],
    ],
    ids=["slurm", "kubernetes", "skypilot"],
)
def test_a_dry_run_prints_the_job_and_touches_nothing(launcher, here, no_programs, capsys):
    before = sorted(here.rglob("*"))
    assert main([*TINY, "strategy=ddp", *launcher, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "dtk.launch.remote.rank" in out
    assert out.startswith("#!/bin/bash\n") or list(yaml.safe_load_all(out))
    assert err == "" and sorted(here.rglob("*")) == before


def test_a_dry_run_here_says_what_would_start(here, capsys):
    assert main([*TINY, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 ranks x" in out and out.splitlines()[-1].startswith("dry run: nothing was started")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "program"),
    [
        (SLURM, "sbatch"),
        ([*TINY, "launcher=kubernetes", "launcher.image=x"], "kubectl"),
        ([*TINY, "launcher=skypilot"], "sky"),
    ],
    ids=["slurm", "kubernetes", "skypilot"],
)
def test_without_the_cluster_s_program_one_line_names_the_dry_run(overrides, program, here, no_programs, capsys):
    assert main(overrides) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and f"needs {program}" in err and "--dry-run" in err
    assert not (here / "runs").exists()


def stand_in(folder: Path, name: str, code: int) -> None:
    """A program that says what it was given, for what happens around it; the real one is in tests/slurm."""
    (folder / name).write_text(f"#!/bin/sh\necho 41\necho no such partition >&2\nexit {code}\n")
    (folder / name).chmod(0o755)


def test_a_refused_job_leaves_no_folder_and_changes_none(here, no_programs, capsys):
    stand_in(no_programs, "sbatch", 0)
    assert main(SLURM) == 0
    (folder,) = (here / "runs").iterdir()
    assert "as job 41" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stand_in(no_programs, "sbatch", 1)
    assert main(SLURM) == 2
    assert main([f"resume={folder}", "train.steps=99"]) == 2
    assert "Slurm refuses the job: no such partition" in capsys.readouterr().err
    assert list((here / "runs").iterdir()) == [folder]
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "job.sbatch"}
    assert after == {path: text for path, text in before.items() if path.name != "job.sbatch"}


def as_rank(monkeypatch, ranks: int) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", str(ranks)), ("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)


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
    assert json.loads(shared.config)["schedule"]["warmup_steps"] == 7
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
    assert from_plain(json.loads(shared.config)) == from_plain(yaml.safe_load(config_map["data"]["config.yaml"]))
    assert read_status(here / "volume" / "run" / "status.json").state == "running"
    assert decide(here / "volume" / "run", frozen, "torchrun").attempt == 1, "the same manifest again goes on"


def test_a_rank_of_a_cluster_does_not_submit(monkeypatch, capsys):
    as_rank(monkeypatch, 1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    from tests.dist.ranks import free_port

    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert main([*TINY, "launcher=slurm"]) == 2
    assert "submits a job" in capsys.readouterr().err


def documented() -> list[str]:
    """The commands of docs/launching.md and docs/run.md that submit a job."""
    texts = [(ROOT / name).read_text() for name in ("docs/launching.md", "docs/run.md")]
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("dtk run launcher=")]


@pytest.mark.parametrize("command", documented())
def test_what_the_documents_submit_can_be_submitted(command, here, capsys):
    typed = [word for word in shlex.split(command.partition(" > ")[0], comments=True)[2:] if word != "--dry-run"]
    assert main([*typed, "--dry-run"]) == 0, capsys.readouterr().err


def test_there_is_something_documented():
    assert len(documented()) >= 6


@pytest.mark.parametrize("launcher", ["slurm", "skypilot"])
def test_memory_that_is_none_is_one_line(launcher, here, capsys):
    typed = [*TINY, "strategy=ddp", f"launcher={launcher}", "launcher.nproc=2", "launcher.memory_per_node=lots"]
    assert main([*typed, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dtk: launcher.memory_per_node=lots is no memory")
