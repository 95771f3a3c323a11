"""A rendered job is handed to the cluster's own program: stand-ins for sbatch, squeue and sky say what they got."""

import dataclasses
import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.errors import DtkError
from dtk.launch.remote import hand_over
from dtk.launch.remote.submission import Submission
from tests.unit.launch.remote.jobs import JOBS, RUN_ID, SKYPILOT, SLURM, job


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave nothing on PATH but what the test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def stand_in(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def slurm_job(tmp_path: Path) -> Submission:
    submission = job(*SLURM, runs=str(tmp_path / "runs"))
    submission.paths.root.mkdir(parents=True)
    return dataclasses.replace(submission, paths=RunPaths(submission.paths.root))


@pytest.mark.parametrize(
    ("name", "begins"),
    [("slurm", "#!/bin/bash"), ("pytorchjob", "---"), ("trainjob", "---"), ("skypilot", "# dtk run")],
)
def test_each_launcher_has_its_own_form(name: str, begins: str) -> None:
    assert hand_over.render(job(*JOBS[name])).startswith(begins)


@pytest.mark.parametrize(("launcher", "name"), hand_over.PROGRAMS.items())
def test_the_program_must_be_here(launcher: str, name: str, programs: Path) -> None:
    with pytest.raises(DtkError) as caught:
        hand_over.check_program(launcher)
    assert caught.value.what == f"launcher={launcher} needs {name}"
    assert caught.value.fix == f"submit on a machine that has it, or add --dry-run to print the job for {name}"
    path = stand_in(programs, name, "exit 0")
    assert hand_over.check_program(launcher) == path


def test_a_job_of_slurm_is_queued_before_sbatch_returns(slurm_job: Submission, programs: Path, tmp_path: Path) -> None:
    state = f'cat "$2" > {tmp_path}/script; cp {slurm_job.paths.status} {tmp_path}/status.json; echo "4711;cluster"'
    program = stand_in(programs, "sbatch", state)
    assert hand_over.submit_slurm(slurm_job, "#!/bin/bash\n", program) == "4711"
    assert (tmp_path / "script").read_text(encoding="utf-8") == "#!/bin/bash\n"
    assert read_status(tmp_path / "status.json").state == "queued", "the job may begin before sbatch returns"
    assert (slurm_job.paths.root / "logs").is_dir(), "Slurm makes no folder for its log"


def test_a_refused_job_is_one_line(slurm_job: Submission, programs: Path) -> None:
    program = stand_in(programs, "sbatch", "echo 'sbatch: error: invalid\n  partition' >&2; exit 1")
    with pytest.raises(DtkError, match=r"^Slurm refuses the job: sbatch: error: invalid partition$"):
        hand_over.submit_slurm(slurm_job, "#!/bin/bash\n", program)
    silent = stand_in(programs, "silent", "exit 3")
    with pytest.raises(DtkError, match="exit code 3"):
        hand_over.ask([silent], "Slurm", None)


def test_a_program_that_does_not_answer_is_one_line(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "TIMEOUT_S", 0.1)
    program = stand_in(programs, "kubectl", "exec sleep 30")
    with pytest.raises(DtkError, match="Kubernetes did not answer in 0 s: the job may have been accepted nevertheless"):
        hand_over.ask([program], "Kubernetes", None)
    with pytest.raises(DtkError, match="cannot run /no/such/program"):
        hand_over.ask(["/no/such/program"], "Kubernetes", None)


def test_what_is_said_beside_the_answer_is_shown(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = stand_in(programs, "kubectl", "cat; echo 'Warning: old' >&2")
    assert hand_over.ask([program], "Kubernetes", "kind: Job\n") == "kind: Job\n"
    assert capsys.readouterr().err == "Warning: old\n"


def test_a_job_inside_another_does_not_inherit_its_options(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_EXPORT", "SLURM_CONF", "HOME"):
        monkeypatch.setenv(name, f"of {name}")
    program = stand_in(programs, "sbatch", "env")
    names = {line.split("=")[0] for line in hand_over.ask([program], "Slurm", None).splitlines()}
    assert {"SLURM_CONF", "HOME"} <= names and not names & {"SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_EXPORT"}


def test_a_run_that_is_queued_already_is_not_submitted_again(programs: Path) -> None:
    hand_over.check_not_queued(RUN_ID)  # Without squeue nothing is known.
    stand_in(programs, "squeue", "exit 1")
    hand_over.check_not_queued(RUN_ID)  # What is wrong with Slurm, sbatch will say.
    stand_in(programs, "squeue", "")
    hand_over.check_not_queued(RUN_ID)
    stand_in(programs, "squeue", f'[ "$2" = "--name={RUN_ID}" ] && echo 4711')
    with pytest.raises(DtkError, match=f"the run {RUN_ID} is in Slurm as job 4711 - wait for it, or scancel 4711"):
        hand_over.check_not_queued(RUN_ID)


@pytest.mark.parametrize(("spot", "verb"), [("true", ["jobs", "launch"]), ("false", ["launch"])])
def test_sky_asks_in_this_terminal(spot: str, verb: list[str], programs: Path, tmp_path: Path) -> None:
    code = f'import json, sys; json.dump([sys.argv[1:], open(sys.argv[-1]).read()], open("{tmp_path}/got", "w"))'
    program = stand_in(programs, "sky", f"python3 -c '{code}' \"$@\"; exit 5")
    assert hand_over.submit_skypilot(job(*SKYPILOT, f"launcher.use_spot={spot}"), "the task\n", program) == 5
    argv, task = json.loads((tmp_path / "got").read_text(encoding="utf-8"))
    assert argv[:-1] == verb and task == "the task\n" and not Path(argv[-1]).exists()


def test_where_to_look_next(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hand_over.print_submitted(RunPaths(tmp_path / "runs" / "a"), "4711")
    lines = capsys.readouterr().out.splitlines()
    assert "scancel 4711" in lines[0] and lines[1].split() == ["run:", "runs/a"]
    assert lines[2].split() == ["log:", "runs/a/logs/slurm-4711.log"] and lines[3].endswith("show runs/a")
