"""What a report says of a job where no cause is confirmed."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.analysis.step_profile.account import Account
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.report import terminal
from diagnostics.report.diagnosis import document
from diagnostics.report.without_cause import account_asks, account_text, log_asks, printed_text, processes_text

ON_DEVICE = Account(0.9, 0.02, 0.01, 0.03, 4, 4, on_device=True, no_device_events=False)


def test_where_the_time_of_a_step_went() -> None:
    shares = "exposed communication 2% of the step, copies 1%, idle 3%"
    assert account_text(ON_DEVICE) == f"90% of the communication overlaps, {shares}"
    assert account_text(replace(ON_DEVICE, overlap=None)) == shares
    assert account_text(replace(ON_DEVICE, devices=2)).endswith("(the least busy of 2 devices)")
    assert account_text(replace(ON_DEVICE, traced=3)).endswith(", 3 of 4 ranks traced")
    assert account_text(replace(ON_DEVICE, seen_ms=0.25)).endswith("only 0.25 ms are in the traces")
    assert account_text(replace(ON_DEVICE, no_device_events=True)) == (
        "the traces contain no device events that can be read (CUDA, ROCm, XPU, MTIA)"
    )


def test_on_cpu_waiting_is_told_apart_and_idle_is_no_fault() -> None:
    on_cpu = replace(ON_DEVICE, on_device=False, waiting=0.01)
    assert "2% of the step (1% waiting for other ranks), no operation in 3%" in account_text(on_cpu)
    assert "waiting" not in account_text(replace(on_cpu, waiting=None))


def test_without_steps_and_processes_nothing_is_said() -> None:
    evidence = Evidence(Path(), Limits())
    assert printed_text(printed_steps(evidence), evidence) == processes_text(evidence) == ""


def test_what_is_asked_for_follows_from_where_the_time_is_open() -> None:
    assert "activities=[ProfilerActivity.CPU" in account_asks(replace(ON_DEVICE, no_device_events=True))
    assert "all ranks" in account_asks(replace(ON_DEVICE, traced=1, exposed=0.8))
    assert "with_stack=True" in account_asks(replace(ON_DEVICE, traced=1, exposed=0.1, idle=0.6))
    assert "with_stack=True" in account_asks(replace(ON_DEVICE, idle=0.5))
    assert "record_shapes=True" in account_asks(replace(ON_DEVICE, exposed=0.8))
    on_cpu = replace(ON_DEVICE, on_device=False, exposed=0.6)
    assert "a core for each rank" in account_asks(replace(on_cpu, waiting=0.4))
    assert "record_shapes=True" in account_asks(replace(on_cpu, waiting=0.1)), "it is transfer"


def test_a_log_without_trouble_asks_where_the_ranks_are(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "".join(f"{{'loss': 1.{n}, 'grad_norm': 2.9, 'learning_rate': 9e-06, 'epoch': 0.0{n}}}\n" for n in range(5, 9))
    )
    shown = terminal.render(document(diagnose(tmp_path), brief=True), columns=None, colour=False)
    assert "needed  py-spy dump" in shown
    assert "hang.all_to_all_splits" not in shown


INIT = "n:9:{pid} [0] NCCL INFO ncclCommInitRank comm 0x5 rank {rank} nranks 2 cudaDev 0 busId 2c000 - Init {phase}\n"


def test_a_log_that_ends_with_the_set_up_of_nccl_says_so(tmp_path: Path) -> None:
    lines = [INIT.format(pid=rank, rank=rank, phase=phase) for phase in ("START", "COMPLETE") for rank in (0, 1)]
    (tmp_path / "train.log").write_text("".join(lines))
    report = diagnose(tmp_path)
    assert "completed the set-up of 2 of 2 ranks" in report.statement
    assert "NCCL_P2P_DISABLE=1" in report.statement


def test_the_reason_that_a_failed_run_recorded_is_told_once(tmp_path: Path) -> None:
    reason = "the last checkpoint failed: no space left on device"
    status = {"state": "failed", "attempt": 0, "schema_version": 1, "step": 20, "exit_code": 1, "reason": reason}
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "manifest.json").write_text('{"schema_version": 1, "topology": {"world_size": 2}}')
    shown = terminal.render(document(diagnose(tmp_path), brief=True), columns=None, colour=False)
    assert shown.startswith(f"UNDECIDED: no cause is confirmed; the run failed: {reason}\n")
    assert shown.count(reason) == 1


def test_a_log_that_ends_with_torchrun_ending_its_processes_says_so(tmp_path: Path) -> None:
    init = "n:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 busId 1 commId 0x2 - Init START\n"
    end = "W0814 06:34:52.848 316 torch/distributed/elastic/api.py:908] Sending process 382 closing signal SIGTERM\n"
    (tmp_path / "job.log").write_text(init + end)
    report = diagnose(tmp_path)
    assert report.outcome == "undecided" and report.statement.startswith("torchrun was stopping its other processes")


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("I1 0 torch/distributed/elastic/agent/server/api.py:886] Local worker group finished (SUCCEEDED).\n",
         "the log says that the training ended"),
        ("$ torchrun --standalone --nproc_per_node=2 train.py\n", "no known problem is reported in 1 log"),
    ],
)  # fmt: skip
def test_a_log_that_tells_no_trouble_and_no_steps(tmp_path: Path, text: str, statement: str) -> None:
    (tmp_path / "job.log").write_text(text)
    shown = terminal.render(document(diagnose(tmp_path), brief=True), columns=None, colour=False)
    assert shown.startswith(f"UNDECIDED: {statement}") and "needed" in shown


SPIED = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    backward (torch/autograd/__init__.py:266)
    backward (torch/_tensor.py:522)
{own}"""


@pytest.mark.parametrize(
    ("own", "at"),
    [("    step (/job/train.py:12)\n", "step (/job/train.py:12)"), ("", "backward (torch/autograd/__init__.py:266)")],
)
def test_the_only_stack_says_where_its_process_is(tmp_path: Path, own: str, at: str) -> None:
    (tmp_path / "spy.txt").write_text(SPIED.format(pid=39, own=own))
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert report.statement.startswith(f"the stack of one process shows its main thread in {at}")
    shown = terminal.render(document(report, brief=True), columns=None, colour=False)
    assert "needed  py-spy dump --pid PID of every rank at about the same time" in shown
    (tmp_path / "second.txt").write_text(SPIED.format(pid=40, own=own))
    assert "the stack of one process" not in diagnose(tmp_path).statement


TITAN = "{}2026-01-02 10:00:0{} - root - INFO - step: {}  loss: {}  memory:  6.42GiB(3.35%)  tps: 269\n"


@pytest.mark.parametrize(
    ("steps", "statement"),
    [
        ((1, 2, 3), "3 printed steps, loss 8 to 6,"),
        ((1,), "1 printed step, loss 8,"),
    ],
)
def test_a_step_that_two_loggers_print_is_one(tmp_path: Path, steps: tuple[int, ...], statement: str) -> None:
    writers = "[rank0]:", "[rank0]:[titan] "
    lines = (TITAN.format(who, n, n, 9 - n) for n in steps for who in writers)
    (tmp_path / "job.log").write_text("".join(lines))
    assert diagnose(tmp_path).statement.startswith(statement)


@pytest.mark.parametrize(("scale", "lowest"), [(1.0, True), (0.00390625, False), (4.0, False)])
def test_only_a_scale_that_cannot_be_halved_is_at_its_minimum(tmp_path: Path, scale: float, lowest: bool) -> None:
    row = "| epoch 001:    {} / 1374 loss=14.351, num_updates={}, lr=4.8e-06, gnorm=3.901, loss_scale=0.062\n"
    skipped = f"| WARNING: overflow detected, setting loss scale to: {scale}\n"
    (tmp_path / "job.log").write_text(row.format(200, 190) + skipped + row.format(300, 289) + row.format(400, 388))
    assert ("at its minimum" in diagnose(tmp_path).statement) == lowest


STEPS = "".join(f"step {n} loss {3 - n / 100:.3f}\n" for n in range(1, 9))
CUT = 'Traceback (most recent call last):\n  File "/job/train.py", line 8, in f\n'


@pytest.mark.parametrize(
    ("text", "command", "is_raised"),
    [
        ("loading the model\n", "torchrun --log-dir", False),  # A crash, and a timeout too, would be there.
        (STEPS, "py-spy dump", False),  # It trained: does it run, hang, or is it gone?
        (STEPS + CUT, "torchrun --log-dir", True),  # How it ended is not open, but why.
        (STEPS + "Training complete\n", "echo $?", False),
    ],
)
def test_one_command_decides_most_of_what_a_log_leaves_open(
    tmp_path: Path, text: str, command: str, is_raised: bool
) -> None:
    (tmp_path / "train.log").write_text(text)
    report = diagnose(tmp_path)
    assert report.outcome == "undecided" and ("traceback" in report.statement) == is_raised
    commands = [
        each for each in ("torchrun --log-dir", "py-spy dump", "dtk ", "echo $?", "profile") if each in log_asks(report)
    ]
    assert commands == [command]
