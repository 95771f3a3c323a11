"""Batch scripts: what srun, bash and sbatch make of them, whatever is in them."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from dtk.errors import DtkError
from dtk.launch.remote import slurm
from tests.unit.launch.remote.jobs import (
    HOSTILE,
    RUN_ID,
    SLURM,
    hostile,
    in_bash,
    job,
    shellcheck,
)


@pytest.mark.parametrize("launcher", ["plain", "hostile"])
def test_shellcheck_finds_nothing_in_a_batch_script(launcher, tmp_path):
    submission = job(*SLURM) if launcher == "plain" else hostile(*SLURM)
    shellcheck(slurm.render(submission, "/home/user/work"), tmp_path)


def test_hostile_text_stays_one_argument_of_srun(tmp_path):
    """The script runs with a stand-in for srun that says what it got."""
    (tmp_path / "srun").write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        'print(json.dumps([sys.argv, os.environ["NCCL_SOCKET_IFNAME"]]))\n'
    )
    (tmp_path / "srun").chmod(0o755)
    submission = hostile(*SLURM, launcher__srun_extra=[f"--comment={HOSTILE}"], launcher__setup=[])
    answer = in_bash(slurm.render(submission, "/"), tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    argv, variable = json.loads(answer.splitlines()[-1])
    assert f"--comment={HOSTILE}" in argv
    assert argv[-1] == str(submission.paths.root) and argv[-2] == "dtk.launch.remote.rank"
    assert variable == HOSTILE


def test_a_variable_of_the_user_wins_in_the_script(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\necho $NCCL_DEBUG\n")
    (tmp_path / "srun").chmod(0o755)
    script = slurm.render(job(*SLURM, "launcher.setup=[]"), "/")
    path = f"{tmp_path}:/usr/bin:/bin"
    assert in_bash(script, tmp_path, PATH=path) == "WARN\n"
    assert in_bash(script, tmp_path, PATH=path, NCCL_DEBUG="INFO") == "INFO\n"


def test_no_line_of_the_user_becomes_an_option_or_a_command():
    submission = job(*SLURM)
    forged = replace(submission, composed=replace(submission.composed, overrides=["a=\n#SBATCH --uid=0\nid"]))
    assert not [line for line in slurm.render(forged, "/").splitlines() if line.startswith(("#SBATCH --uid", "id"))]
    for key in ("partition", "account", "qos", "memory_per_node"):
        with pytest.raises(DtkError, match="line break"):
            slurm.render(job(*SLURM, f'launcher.{key}="x\n#SBATCH --uid=0"'), "/")
    for key in ("extra", "srun_extra", "setup"):
        with pytest.raises(DtkError, match="line break"):
            slurm.render(job(*SLURM, f'launcher.{key}=["--x=1\nid"]'), "/")


def test_options_of_sbatch_come_before_the_first_command():
    lines = slurm.render(job(*SLURM), "/").splitlines()
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert max(options) < first
    assert "module load cuda" in lines[first:]


def test_the_log_has_only_the_number_of_the_job_as_a_pattern():
    script = slurm.render(hostile(*SLURM), "/")
    (pattern,) = re.findall(r"^#SBATCH --output=(.*)$", script, flags=re.MULTILINE)
    assert shlex.split(pattern)[0] == f"/shared/it's $HOME `x` %%j;$(id)/{RUN_ID}/logs/slurm-%j.log"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (['launcher.extra=["--nodes=4"]'], "launcher.nodes"),
        (['launcher.extra=["--output=x"]'], "dtk's own"),
        (['launcher.extra=["constraint=h100"]'], "is not an option"),
        (["launcher.time=soon"], "not a time limit"),
    ],
)
def test_options_that_sbatch_would_misread_are_one_line(overrides, text):
    with pytest.raises(DtkError, match=text):
        slurm.render(job(*SLURM, *overrides), "/")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["launcher.requeue=false"], "#SBATCH --no-requeue"),
        (["launcher.time=null"], "#SBATCH --requeue"),
        (["launcher.signal_before_s=60"], "#SBATCH --signal=B:USR1@60"),
        (['launcher.extra=["--exclusive"]'], "#SBATCH --exclusive"),
        (["launcher.master_port=3000"], "export MASTER_PORT=3000"),
        (
            ["launcher.cpus_per_rank=null"],
            '[[ -v OMP_NUM_THREADS ]] || export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
        ),
        (["launcher.max_restarts=3"], "restarts=3"),
    ],
)
def test_what_each_key_becomes(overrides: list[str], line: str) -> None:
    assert line in slurm.render(job(*SLURM, *overrides), "/").splitlines()


def test_what_is_null_is_left_to_the_cluster() -> None:
    options = [line for line in slurm.render(job("launcher=slurm"), "/work").splitlines() if line.startswith("#SBATCH")]
    names = {option.removeprefix("#SBATCH --").partition("=")[0] for option in options}
    assert not names & {"partition", "account", "qos", "time", "mem", "gres", "cpus-per-task"}
    assert {"job-name", "nodes", "ntasks-per-node", "signal", "chdir", "output", "dependency"} <= names


@pytest.mark.parametrize("name", [*slurm._TABLE["keys"], *slurm._TABLE["fixed"]])
def test_an_option_that_dtk_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(DtkError, match=rf"launcher\.extra: (--{name}=1 has a key of its own|--{name} is dtk's own)"):
        slurm.render(job(*SLURM, launcher__extra=[f"--{name}=1"]), "/")


def test_keys_that_a_refused_option_leads_to_exist() -> None:
    launcher = job(*SLURM).launcher
    assert all(hasattr(launcher, key) for key in slurm._TABLE["keys"].values())


def test_an_option_of_srun_that_is_none_and_a_log_that_slurm_cannot_write() -> None:
    with pytest.raises(DtkError, match=r"launcher\.srun_extra: -x is not an option"):
        slurm.render(job(*SLURM, launcher__srun_extra=["-x"]), "/")
    with pytest.raises(DtkError, match="has a backslash: Slurm cannot write its log there"):
        slurm.render(job(*SLURM, runs="/back\\slash"), "/")
