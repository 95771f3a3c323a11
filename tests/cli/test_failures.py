"""Ranks that really fail: the parent names the first one, with its step, region and log, within seconds."""

import time

import pytest

from diagnostics.contract.artifacts import RunPaths, read_heartbeat
from tests.cli.command import FAULTY, only_run, run, start, status

FAULTS = {
    "raise": ("ValueError: bad batch (faulty.py:", "failed"),
    "SIGKILL": ("killed by SIGKILL", "failed"),
    "SIGSEGV": ("killed by SIGSEGV", "failed"),
    "exit": ("exited with code 7", "failed"),
    "out_of_memory": ("can't allocate memory", "oom"),
}
CASES = [
    ("raise", "ddp"),
    ("SIGKILL", "ddp"),
    ("out_of_memory", "fsdp"),
    *(pytest.param(name, "fsdp", marks=pytest.mark.extended) for name in ("raise", "SIGKILL", "SIGSEGV", "exit")),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("fault", "strategy"), CASES)
def test_the_first_failing_rank_is_named(fault, strategy, tmp_path):
    reason, state = FAULTS[fault]
    process = run(tmp_path, *FAULTY, f"+model.arguments.fault={fault}", f"strategy={strategy}")
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stdout + process.stderr
    folder = only_run(tmp_path)
    record = status(folder)
    failure = record["failure"]
    assert record["state"] == state
    assert failure["rank"] == 1
    assert reason in failure["reason"]
    assert (failure["step"], failure["region"]) == (4, "forward")
    assert failure["victims"] == [0]
    assert (folder / failure["log"]).is_file()
    cause = {"failed": "CRASHED: ", "oom": "OUT OF MEMORY: "}[state]
    assert f"\n{cause}" in process.stdout and "\nblame   rank 1 (victims: rank 0)" in process.stdout
    for text in ("rank 1 was first", reason, "step 4, region forward", failure["log"], f"dtk show {folder}"):
        assert text in process.stdout


@pytest.mark.timeout(120)
def test_named_within_ten_seconds(tmp_path):
    """Counted from the failing rank's last heartbeat to the parent's exit."""
    process = start(tmp_path, *FAULTY, "+model.arguments.fault=raise")
    process.communicate(timeout=100)
    ended_s = time.time()
    beat = read_heartbeat(RunPaths(only_run(tmp_path)).heartbeat(1))
    assert beat is not None
    assert ended_s - beat.time_s < 10


@pytest.mark.timeout(180)
def test_restart_from_the_last_checkpoint(tmp_path):
    process = run(
        tmp_path,
        *FAULTY,
        "+model.arguments.fault=SIGKILL",
        "+model.arguments.forward=8",
        "launcher.max_restarts=1",
        "checkpoint=default",
        "checkpoint.every=5",
        "checkpoint.asynchronous=false",
        "train.steps=12",
        timeout_s=150,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    folder = only_run(tmp_path)
    record = status(folder)
    assert (record["state"], record["step"]) == ("finished", 12)
    assert "resumed from step_00000005" in process.stdout
    before, _, _ = process.stdout.partition("restarting: attempt 1")
    assert before.splitlines()[-1].startswith("attempt 0 failed: rank "), process.stdout
    assert (folder / "logs" / "attempt_1" / "rank_00001" / "stdout.log").is_file()


@pytest.mark.timeout(120)
def test_without_a_record_the_failure_is_still_named(tmp_path):
    process = run(tmp_path, *FAULTY, "+model.arguments.fault=SIGKILL", "record=off")
    failure = status(only_run(tmp_path))["failure"]
    assert (failure["rank"], failure["step"]) == (1, None)
    assert "record=off" in process.stdout
