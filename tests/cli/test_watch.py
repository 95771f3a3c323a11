"""Real runs that hang: found in seconds, explained, and a rank that is only late is left alone."""

import re
import time

import pytest

from diagnostics.contract.artifacts import RunPaths, read_verdict
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from tests.cli.command import FAULTY, only_run, run, start, status
from tests.cli.test_run_torchrun import torchrun
from tests.patience import stretched

HANGING = [text.replace("faulty.Faulty", "hanging.Hanging").replace("faulty.*", "hanging.*") for text in FAULTY]
PROMPT_S = 5.0
"""From the planted moment to its cause on the terminal, when the proof is there at once."""


def hang(folder, fault, *more, **options):
    """Run with a fault; returns exit code, output, run folder, seconds from the fault to the cause or else the end."""
    process = start(folder, *HANGING, f"+model.arguments.fault={fault}", *more, **options)
    lines, told_s = [], None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("  what  "):
            told_s = told_s or time.time()
    error = process.communicate(timeout=stretched(30))[1]
    out, ended_s = "".join(lines), told_s or time.time()
    planted = re.findall(r"planted at ([\d.]+)", out)
    assert planted, out + error
    return process.returncode, out + error, only_run(folder), ended_s - float(planted[0])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "strategy", "here", "there"),
    [
        pytest.param(
            "operation",
            "ddp",
            "rank 0 called all_reduce [8] float32 SUM",
            "rank 1 called broadcast [8] float32 root 0",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "size",
            "ddp",
            "rank 0 called all_reduce [128]",
            "rank 1 called all_reduce [64]",
            marks=pytest.mark.extended,
        ),
        ("extra", "fsdp", "rank 0 called all_gather_into_tensor", "rank 1 called barrier at hanging.py:"),
        pytest.param(
            "reduce_op",
            "fsdp",
            "float32 SUM at hanging.py:",
            "float32 MAX at hanging.py:",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_proven_desync_ends_within_seconds(fault, strategy, here, there, tmp_path):
    code, out, folder, took_s = hang(tmp_path, fault, f"strategy={strategy}")
    assert code == 1, out
    record = status(folder)
    assert record["state"] == "hung"
    # Two ranks disagree: nobody can say which of them is wrong.
    assert (record["failure"]["rank"], record["failure"]["step"]) == (-1, 4)
    assert here in record["reason"]
    assert there in record["reason"]
    assert record["reason"] in out
    assert "Traceback" not in out
    assert took_s <= stretched(PROMPT_S), out


@pytest.mark.timeout(120)
def test_the_watch_leaves_dumps_of_all_ranks(tmp_path):
    _, out, folder, _ = hang(tmp_path, "operation", "strategy=ddp")
    paths = RunPaths(folder)
    verdict = read_verdict(paths.verdict(0))
    assert (verdict.kind, verdict.culprits, verdict.position) == ("desync", [], verdict.position), out
    for rank in range(2):
        assert "hanging.py" in paths.stacks(rank).read_text()
        assert paths.flight(rank).stat().st_size > 0
        calls = RingFile(paths.ring(rank), "", rank, Limits()).read().records
        assert calls[-1].op == ("all_reduce", "broadcast")[rank]
        # The rank that leaves first breaks the call of the other.
        assert calls[-1].state in ("started", "raised")
        assert calls[-1].seq == verdict.position


@pytest.mark.timeout(120)
def test_a_stuck_host_is_blamed(tmp_path):
    code, out, folder, took_s = hang(tmp_path, "sleep", "watch.stall_timeout_s=4")
    assert code == 1, out
    record = status(folder)
    assert record["state"] == "hung"
    assert (record["failure"]["rank"], record["failure"]["victims"]) == (1, [0])
    assert "rank 1 is at hanging.py:" in record["reason"]
    assert "rank 0 waits in all_gather_into_tensor" in record["reason"]
    assert 4 <= took_s <= 4 + stretched(5), out


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("stopped", "forward"),
    [pytest.param(0, 4, marks=pytest.mark.extended), (1, 4), (0, 1), pytest.param(1, 1, marks=pytest.mark.extended)],
)
def test_a_stopped_process_is_blamed_also_when_it_is_the_judge(stopped, forward, tmp_path):
    more = [f"+model.arguments.rank={stopped}", f"+model.arguments.forward={forward}"]
    limits = ["watch.stall_timeout_s=4", "watch.first_step_timeout_s=4"]
    _, out, folder, took_s = hang(tmp_path, "stop", *more, *limits)
    record = status(folder)
    assert (record["state"], record["failure"]["rank"]) == ("hung", stopped), out
    assert f"rank {stopped} does not answer" in record["reason"]
    assert took_s <= 4 + stretched(5), out


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("fault", "seconds"), [("sleep", 3), pytest.param("work", 8, marks=pytest.mark.extended)])
def test_a_late_rank_is_not_killed(fault, seconds, tmp_path):
    """One that sleeps for less than the limit, and one that computes for much longer than it."""
    more = [f"+model.arguments.seconds={seconds}", "watch.stall_timeout_s=4", "train.steps=6"]
    code, out, folder, took_s = hang(tmp_path, fault, *more)
    assert (code, status(folder)["state"]) == (0, "finished"), out
    assert took_s >= seconds


@pytest.mark.timeout(120)
def test_a_slow_first_step_is_not_killed(tmp_path):
    more = ["+model.arguments.seconds=6", "+model.arguments.forward=1", "watch.stall_timeout_s=2", "train.steps=3"]
    code, out, folder, _ = hang(tmp_path, "sleep", *more)
    assert (code, status(folder)["state"]) == (0, "finished"), out


@pytest.mark.extended
@pytest.mark.timeout(120)
def test_switched_off_it_leaves_everything_to_the_backend(tmp_path):
    more = ["watch.enabled=false", "watch.stall_timeout_s=2", "+model.arguments.seconds=6", "train.steps=6"]
    code, out, folder, _ = hang(tmp_path, "sleep", *more)
    assert (code, status(folder)["state"]) == (0, "finished"), out


@pytest.mark.timeout(150)
def test_under_torchrun(tmp_path):
    launcher = torchrun("--standalone", "--nproc-per-node=2")
    code, out, folder, took_s = hang(tmp_path, "operation", launcher=launcher, OMP_NUM_THREADS="1")
    assert code != 0
    record = status(folder)
    assert (record["state"], record["exit_code"]) == ("hung", 1), out
    assert "ranks called different collectives" in out
    assert took_s < stretched(15), out


@pytest.mark.timeout(120)
def test_a_killed_rank_is_still_named_and_leaves_its_ring(tmp_path):
    process = run(tmp_path, *FAULTY, "+model.arguments.fault=SIGKILL")
    assert process.returncode == 1
    folder = only_run(tmp_path)
    assert (status(folder)["state"], status(folder)["failure"]["rank"]) == ("failed", 1)
    last = RingFile(RunPaths(folder).ring(1), "", 1, Limits()).read().records[-1]
    assert (last.step, last.state) == (4, "finished") or last.asynchronous
