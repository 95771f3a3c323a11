"""`dtk run launcher=...` where there is no cluster: --dry-run, one line for what is missing, frozen runs read again."""

import os
import shlex
from pathlib import Path

import pytest
import yaml

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
    assert out == "" and err.startswith("dtk: launcher.memory_per_node=lots is not an amount of memory")
