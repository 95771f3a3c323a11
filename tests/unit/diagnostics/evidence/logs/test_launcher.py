"""torchrun's list of failures, line by line, and the interpreter's last line."""

import pytest

from diagnostics.evidence.logs.launcher import LAUNCHER_TYPE, FailureTable, fatal_error, signal_in
from tests.unit.diagnostics.evidence.texts import TORCHRUN


def table(text):
    failure_table = FailureTable()
    for number, line in enumerate(text.splitlines(), 1):
        failure_table.feed(line, number)
    return failure_table


def row(rank, code, traceback="", local=None):
    return (
        f"  time      : 2026-11-21_14:03:54\n  rank      : {rank} (local_rank: {rank if local is None else local})\n"
        f"  exitcode  : {code} (pid: {4000 + rank})\n  error_file: <N/A>\n  traceback : {traceback}\n"
    )


def test_the_list_of_a_job():
    errors = table(TORCHRUN).errors("job.log")
    assert [(e.rank, e.signal, e.exit_code, e.type, e.message) for e in errors] == [
        (8, "SIGTERM", -15, "", "killed by SIGTERM"),
        (9, "SIGKILL", -9, "", "killed by SIGKILL"),
        (10, None, 1, "ValueError", "bad batch"),
    ]
    assert errors[2].frames[0].file == "train.py"
    assert {e.file for e in errors} == {"job.log"}
    assert errors[0].time_s == errors[1].time_s is not None


def test_ranks_processes_and_where_the_node_begins():
    result = table(TORCHRUN)
    listed = result.listed("")
    assert listed["ranks"] == [8, 9, 10] and listed["pids"] == [7298, 7299, 7300]
    assert listed["rank_of"] == {7298: 8, 7299: 9, 7300: 10} and listed["host_of"][9] == "localhost"
    assert listed["beside"] == [] and "finished" not in listed
    assert result.offset() == 8


def test_nodes_that_disagree_have_no_offset():
    assert table(row(8, 1, local=0) + row(3, 1, local=3)).offset() is None
    assert FailureTable().offset() is None
    assert FailureTable().errors("f") == []


def test_a_row_ends_with_the_first_other_line():
    failure_table = FailureTable()
    lines = row(1, 1).splitlines()
    assert [failure_table.feed(line, n) for n, line in enumerate(lines)] == [True] * 5
    assert not failure_table.feed("------------", 6)
    assert failure_table.row is None
    assert not failure_table.feed("rank: 3", 7), "a row is indented"


def test_numbers_that_are_none_leave_the_row_bare():
    result = table("  rank      : many\n  exitcode  : 1 (pid: 7)\n")
    assert result.rows == []
    damaged = table("  time      : soon\n  rank      : 1 (local_rank: 1)\n  exitcode  : x\n").errors("f")
    assert [(e.rank, e.exit_code, e.time_s, e.message) for e in damaged] == [(1, None, None, "exit code None")]


def test_the_traceback_says_the_signal_where_the_exit_code_does_not():
    (error,) = table(row(2, 1, "Signal 9 (SIGKILL) received by PID 4002")).errors("f")
    assert (error.signal, error.exit_code) == ("SIGKILL", 1)


def test_a_rank_that_is_listed_twice_on_one_line_is_one():
    result = table(row(1, 1))
    result.rows.append(result.rows[0])
    assert len(result.errors("f")) == 1


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("Fatal Python error: Segmentation fault", "SIGSEGV"),
        ("Fatal Python error: Aborted", "SIGABRT"),
        ("*** SIGSEGV received at time=1741149596 on cpu 63 ***", "SIGSEGV"),
        ("**Killed**", "SIGKILL"),
        ("Fatal Python error: Floating-point exception", "SIGFPE"),
        ("[node-7:70544] Signal: Segmentation fault (11)", "SIGSEGV"),  # Open MPI
        (
            "[node-7:70544:0:70544] Caught signal 11 (Segmentation fault: address not mapped to object)",
            "SIGSEGV",
        ),  # UCX
        ("[node-7:70544:0:70601] Caught signal 8 (Floating point exception: integer divide by zero)", "SIGFPE"),
        ("6%|#6    | 3787/62565 [04:47<1:10:53, 13.82it/s]Killed", "SIGKILL"),
        ("Epoch 2:  41%|#  | 3/7 [00:12<00:16,  4.1s/it, v_num=3]Segmentation fault (core dumped)", "SIGSEGV"),
        ("Fatal Python error: _Py_CheckFunctionResult: a function returned NULL", None),
    ],
)
def test_the_interpreters_last_line(text, signal):
    error = fatal_error(text, 2, "rank_2.log", 9)
    assert (error.rank, error.line, error.type, error.message, error.signal) == (2, 9, "", text, signal)


def test_other_lines_are_none():
    assert fatal_error("ValueError: bad", 0, "f", 1) is None
    assert fatal_error(" Fatal Python error: Aborted", 0, "f", 1) is None, "it stands at the beginning of a line"
    assert fatal_error("[node-7:70544] Signal: User defined signal 1 (10)", 0, "f", 1) is None
    assert fatal_error("[step 3/7] tasks: Killed", 0, "f", 1) is None


@pytest.mark.parametrize(
    ("command", "trains"),
    [
        ("litgpt pretrain model --data text", True),
        ("swift sft --model qwen", True),
        ("lightning fit --config a.yaml", True),
        ("rsync -a train /mnt/b", False),
        ("aws s3 sync trained s3://b", False),
        ("./model_server --port 8000", False),
    ],
)
def test_commands_of_which_a_shell_says_that_they_aborted(command: str, trains: bool) -> None:
    text = f"run.sh: line 18: 1324 Aborted                 (core dumped) {command}"
    assert (fatal_error(text, None, "f", 1) is not None) == trains


def test_whose_exception_it_is_and_which_signal_a_line_names():
    assert LAUNCHER_TYPE.match("ChildFailedError") and LAUNCHER_TYPE.match("DeadlockDetectedException")
    assert not LAUNCHER_TYPE.match("ValueError")
    assert signal_in("Signal 15 (SIGTERM) received by PID 7") == "SIGTERM"
    assert signal_in("Signal 15 received") is None


def test_a_list_that_was_pasted_as_plain_text_has_lost_its_indentation():
    pasted = row(3, -9, "Signal 9 (SIGKILL) received by PID 4003").replace("  ", "")
    result = table(f"Root Cause (first observed failure):\n[0]:\n{pasted}")
    assert [(e.rank, e.signal, e.exit_code) for e in result.errors("f")] == [(3, "SIGKILL", -9)]
    assert not FailureTable().feed("time: 0.31  data: 0.02  rank: 1", 1), "a script's own figures are no row"
