"""Ranks that really fail: the parent names the first one, with its step, region and log, within seconds."""

import time
from importlib.util import find_spec

import pytest

from diagnostics.contract.artifacts import RunPaths, read_heartbeat
from tests.cli.command import FAULTY, metrics, only_run, run, start, status
from tests.patience import stretched


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"the package {package} is not installed")


FAULTS = {
    "raise": ("ValueError: bad batch (faulty.py:", "failed"),
    "SIGKILL": ("killed by SIGKILL", "failed"),
    "SIGSEGV": ("killed by SIGSEGV", "failed"),
    "exit": ("exited with code 7", "failed"),
    "out_of_memory": ("can't allocate memory", "oom"),
}
CASES = [
    # dtk's own strategies end so in tests/faults: `exception` and `sigkill`.
    pytest.param("raise", "ddp", "accelerate", marks=needs("accelerate")),
    pytest.param("SIGKILL", "deepspeed_zero2", "native", marks=needs("deepspeed")),
    ("out_of_memory", "fsdp", "native"),
    *(
        pytest.param(name, strategy, "native", marks=pytest.mark.extended)
        for name, strategy in (("raise", "ddp"), *((kind, "fsdp") for kind in ("raise", "SIGKILL", "SIGSEGV", "exit")))
    ),
]


@pytest.mark.parametrize(("fault", "strategy", "engine"), CASES)
def test_the_first_failing_rank_is_named(fault, strategy, engine, tmp_path):
    reason, state = FAULTS[fault]
    chosen = [f"+model.arguments.fault={fault}", f"strategy={strategy}", f"engine={engine}"]
    process = run(tmp_path, *FAULTY, *chosen)
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
    for text in ("rank 1 failed first", reason, "step 4, region forward", failure["log"], f"dtk show {folder}"):
        assert text in process.stdout


def test_named_within_ten_seconds_of_a_quiet_machine(tmp_path):
    """Counted from the failing rank's last heartbeat to the parent's exit."""
    process = start(tmp_path, *FAULTY, "+model.arguments.fault=raise")
    process.communicate(timeout=200)
    ended_s = time.time()
    beat = read_heartbeat(RunPaths(only_run(tmp_path)).heartbeat(1))
    assert beat is not None
    assert ended_s - beat.time_s < stretched(10)


def test_restart_from_the_last_checkpoint(tmp_path):
    """With states in a file too: the rank that is killed leaves none, and the steps made again come out the same."""
    swap = tmp_path / "swap"
    swap.mkdir()
    process = run(
        tmp_path / "runs",
        *FAULTY,
        "+model.arguments.fault=SIGKILL",
        "+model.arguments.forward=8",
        "strategy=fsdp",
        "strategy.offload=parameters",
        "strategy.offload_to=nvme",
        f"strategy.offload_folder={swap}",
        "launcher.max_restarts=1",
        "checkpoint=default",
        "checkpoint.every=5",
        "checkpoint.asynchronous=false",
        "train.steps=12",
        "train.log_every=1",
        timeout_s=220,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    folder = only_run(tmp_path / "runs")
    record = status(folder)
    assert (record["state"], record["step"], record["attempt"]) == ("finished", 12, 1)
    assert "resumed from step_00000005" in process.stdout
    before, _, _ = process.stdout.partition("restarting: attempt 1")
    assert before.splitlines()[-1].startswith("attempt 0 failed: rank 1: killed by SIGKILL"), process.stdout
    assert (folder / "logs" / "attempt_1" / "rank_00001" / "stdout.log").is_file()
    assert not list(swap.iterdir())
    records = [record for record in metrics(folder) if "loss" in record]
    first, second = ({r["step"]: r["loss"] for r in records if r["attempt"] == attempt} for attempt in (0, 1))
    assert min(second) == 6 and (again := sorted(first.keys() & second.keys()))
    assert [first[step] for step in again] == [second[step] for step in again]


def test_without_a_record_the_failure_is_still_named(tmp_path):
    process = run(tmp_path, *FAULTY, "+model.arguments.fault=SIGKILL", "record=off")
    failure = status(only_run(tmp_path))["failure"]
    assert (failure["rank"], failure["step"]) == (1, None)
    assert "record=off" in process.stdout
