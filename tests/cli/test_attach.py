"""`dtk attach` on live torchrun jobs that hang: the right rank, and a job that is as it was."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtk.attach import processes
from tests.cli.attaching import attach, job, look
from tests.cli.command import ROOT, environment
from tests.cli.stuck import HEALTHY, TRUTH
from tests.patience import stretched

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
EASY = "sleeps"
PY_SPY = Path(sys.executable).parent / "py-spy"


def command(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "dtk", "attach", *arguments]
    env = environment(**more)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """One job for several tests: looking does not change it."""
    with job(EASY, tmp_path_factory.mktemp("job") / "job.log") as pid:
        allowed = subprocess.run([shutil.which("py-spy") or PY_SPY, "dump", "--pid", str(pid)], capture_output=True)
        if allowed.returncode:
            pytest.skip(f"stacks of other processes cannot be read here: {allowed.stderr.decode()[-200:]}")
        yield pid


@pytest.mark.slow
def test_the_rank_that_sleeps_is_named_and_the_job_stays_as_it_was(hanging: int, tmp_path: Path) -> None:
    (before,) = processes.find([hanging])
    seen = attach(hanging, tmp_path / "look")
    assert (seen.ranks, seen.cause, seen.code) == (TRUTH[EASY][0], TRUTH[EASY][1][0], 1), seen.said
    assert seen.first["where"][0]["function"] == "_hold"
    assert stat.S_IMODE((tmp_path / "look").stat().st_mode) == 0o700
    (after,) = processes.find([hanging])
    assert {process.pid for process in after.values()} == {process.pid for process in before.values()}
    assert all(processes.moment(process.pid)[0].state in "SR" for process in after.values())
    again = command(str(hanging), "--folder", str(tmp_path / "look"))
    assert again.returncode == 2 and "already holds the records" in again.stderr


@pytest.mark.slow
def test_list_names_the_ranks(hanging: int) -> None:
    done = command("--list", str(hanging))
    assert done.returncode == 0 and done.stdout.startswith("ranks 0-3 of 4 (pids ") and done.stdout.count("\n") == 1


@pytest.mark.slow
def test_slurm_collects_through_srun(hanging: int, tmp_path: Path) -> None:
    """The stand-in for srun runs the command once, on this host."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$@" > "$0.args"\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    options = ["--folder", str(tmp_path / "look"), "--rounds", "2", "--every-s", "0.2", "--collect", "--no-native"]
    done = command("--slurm", "77", *options, PATH=path)
    text = (tmp_path / "srun.args").read_text()
    assert "--jobid=77 --overlap --ntasks-per-node=1" in text and "--no-native" in text
    if done.returncode == 0:  # Another job of this host makes the command ask which one is meant.
        assert len(list((tmp_path / "look" / "stacks").iterdir())) == 4
    else:
        assert "jobs run here" in done.stderr


@pytest.mark.slow
def test_hosts_collect_through_ssh(hanging: int, tmp_path: Path) -> None:
    """The stand-in for ssh runs the command of one host here, and fails for the other."""
    (ssh := tmp_path / "ssh").write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "-o BatchMode=yes --" ] && [ "$4" = node1 ] || exit 255\nexec sh -c "$5"\n'
    )
    ssh.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    options = ["--folder", str(tmp_path / "a look"), "--rounds", "2", "--every-s", "0.2", "--collect", "--no-native"]
    done = command("--hosts", "node1,node2", *options, PATH=path)
    if "jobs run here" not in done.stderr:  # Another job of this host makes the command ask which one is meant.
        assert done.returncode == 0 and "node2: ssh or dtk attach failed there" in done.stderr, done.stderr
        assert len(list((tmp_path / "a look" / "stacks").iterdir())) == 4


def test_what_cannot_be_attached_to_is_one_line() -> None:
    for arguments, said in (
        (["1073741000"], "is not a rank and has started none"),
        (["x"], "is not a whole number"),
        (["--rounds", "8", "--every-s", "40"], "exceed 45 s"),
        (["--slurm", "7"], "there is no srun"),
        (["--hosts", "n1"], "there is no ssh"),
        (["--hosts", ","], "--hosts names no host"),
        (["--hosts", "n1", "--slurm", "7"], "both name hosts"),
    ):
        if said.startswith("there is no ") and shutil.which(said.split()[-1]):
            continue
        done = command(*arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, (arguments, done.stderr)


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in (*TRUTH, *HEALTHY) if name != EASY])
def test_every_fault(name: str, tmp_path: Path) -> None:
    seen = look(name, tmp_path)
    ranks, causes = TRUTH.get(name, ((), ("",)))
    assert (seen.ranks, seen.cause in causes) == (ranks, True), (seen.cause, seen.said)
    assert seen.took_s < stretched(60)
