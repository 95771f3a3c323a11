"""Exceptions that end no process: those of side threads, destructors and log handlers."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

THREAD = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/home/me/upload.py", line 33, in upload
    send(path)
OSError: [Errno 5] Input/output error
"""
PLAIN = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in __del__
    self.pool.close()
ValueError: pool is closed
"""
EXIT = """\
E1122 10:21:05.000000 4000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 5001) of binary: python
"""  # noqa: E501


def prefixed(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "Exception in thread Thread-3 (upload):\n" + THREAD,
        "ERROR:root:the upload failed\n" + THREAD,  # Printed by the program; the outermost frame tells.
        "Exception ignored in: <function Loader.__del__ at 0x7f0>\n" + PLAIN,
        "--- Logging error ---\n" + PLAIN,
        "Task exception was never retrieved\nfuture: <Task finished name='Task-2'>\n" + PLAIN,
        "Error in atexit._run_exitfuncs:\n" + PLAIN,
    ],
)
def test_it_is_not_how_the_rank_ended(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.log").write_text(prefixed(0, text))
    evidence = gather(tmp_path, Limits())
    assert not evidence.errors
    assert [(fact.kind, fact.rank) for fact in evidence.facts] == [("side_error", 0)]
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert "Error" in " ".join(report.notes)


def test_another_rank_s_own_exception_is_the_cause(tmp_path: Path) -> None:
    own = PLAIN.replace("__del__", "<module>")
    (tmp_path / "train.log").write_text(prefixed(0, "Exception in thread T:\n" + THREAD) + prefixed(2, own))
    assert [(root_cause.cause, root_cause.ranks) for root_cause in diagnose(tmp_path).root_causes] == [
        ("hang.rank_raised", (2,))
    ]


def test_a_rank_that_exits_after_it_without_another_exception_ended_by_it(tmp_path: Path) -> None:
    table = "  time      : 2025-11-22_10:21:05\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 5001)\n"
    (tmp_path / "train.log").write_text(prefixed(1, "Exception in thread T:\n" + THREAD) + EXIT + table)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.confidence) == ("hang.rank_raised", (1,), 0.7)
    assert root.where[0].file == "/home/me/upload.py"


def test_a_rank_that_does_not_wait_with_the_others_is_suspected(tmp_path: Path) -> None:
    waits = "".join(
        f"[rank{rank}]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=500, OpType=ALLREDUCE, NumelIn=99999, NumelOut=99999, Timeout(ms)=600000) ran for "
        "600033 milliseconds before timing out.\n"
        for rank in (0, 1, 3)
    )
    (tmp_path / "train.log").write_text(prefixed(2, "Exception in thread T:\n" + THREAD) + waits)
    first = diagnose(tmp_path).suspicions[0]
    assert (first.cause, first.ranks) == ("hang.host_stall", (2,))
    assert "side thread" in first.speaks_for[0]


LISTED = """\
  File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 240, in reduce_scatter
    raise result
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1, 3])
Traceback (most recent call last): (RANK 1)
  File "/home/me/reader.py", line 40, in read_metadata
    return load(path)
FileNotFoundError: /ckpt/.metadata
Traceback (most recent call last): (RANK 3)
  File "/home/me/reader.py", line 44, in read_metadata
    return parse(text)
EOFError: Ran out of input
"""


def test_a_checkpoint_s_exception_lists_what_other_ranks_raised(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(prefixed(0, LISTED))
    assert [(error.rank, error.type) for error in gather(tmp_path, Limits()).errors] == [
        (1, "FileNotFoundError"),
        (3, "EOFError"),
    ]


@pytest.mark.parametrize("lines", [3, 6])
def test_of_ranks_whose_own_tracebacks_are_cut_the_list_is_known(tmp_path: Path, lines: int) -> None:
    """The exception that lists them is complete, and the last traceback in it is not."""
    text = "\n".join(
        LISTED.splitlines()[: LISTED.splitlines().index("Traceback (most recent call last): (RANK 1)") + lines]
    )
    (tmp_path / "train.log").write_text(prefixed(0, text.replace("FileNotFoundError: /ckpt/.metadata\n", "")))
    errors = gather(tmp_path, Limits()).errors
    assert {(error.rank, error.type) for error in errors} == {(1, "CheckpointException"), (3, "CheckpointException")}
    assert [root.ranks for root in diagnose(tmp_path).root_causes] == [(1, 3)]


STOPPED = "slurmstepd: error: *** STEP 55.0 ON n7 CANCELLED AT 2025-01-10T15:27:25 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(("steps", "handled"), [((1, 2, 3), True), ((1, 1, 1), False)])
def test_states_of_a_bar_that_is_drawn_over_itself_are_steps(
    tmp_path: Path, steps: tuple[int, ...], handled: bool
) -> None:
    """The shell's own failure in front of the training, say, which then went on until the job's time was up."""
    drawn = "\r".join(f"Epoch {step}: {step}/900 [00:0{step}<1:04:59]" for step in steps)
    (tmp_path / "job.log").write_text(f"CommandNotFoundError: your shell is not set up\n\r{drawn}\n{STOPPED}")
    facts = gather(tmp_path / "job.log", Limits()).facts
    assert any(fact.kind == "handled_error" for fact in facts) == handled
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause == "env.job_stopped") == handled


WHOLE = 'Traceback (most recent call last):\n  File "t.py", line 5, in f\nKeyError: 3\n'


def bar(states: int, label: str = "", glue: str = "  ") -> str:
    """Return the states of a progress bar in one line."""
    texts = (f"{label}{2 * n}%|{'█' * n}▍{' ' * (50 - n)}| {n}/50 [00:{n:02d}<00:50,  1.00s/it]" for n in range(states))
    return glue.join(texts)


@pytest.mark.parametrize("glue", ["  ", "\r"])
@pytest.mark.parametrize(
    ("states", "label", "handled"),
    [(9, "", True), (2, "", False), (9, "Loading checkpoint shards: ", False), (9, "Epoch 1: ", True)],
)
def test_states_of_a_bar_in_one_line_are_steps(
    tmp_path: Path, states: int, label: str, handled: bool, glue: str
) -> None:
    (tmp_path / "job.log").write_text(
        f"CommandNotFoundError: your shell is not set up\n{bar(states, label, glue)}{STOPPED}"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause == "env.job_stopped") == handled


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("ImportError: no apex\n" + STOPPED.replace("TIME LIMIT", "PREEMPTION"), "env.job_stopped"),
        ("ImportError: no apex\n" + STOPPED.replace("TIME LIMIT", "NODE FAILURE"), "env.job_stopped"),
        ("[rank3]: ImportError: no apex\n" + STOPPED.replace("TIME LIMIT", "PREEMPTION"), "hang.rank_raised"),
        (WHOLE + STOPPED.replace("TIME LIMIT", "PREEMPTION"), "hang.rank_raised"),
    ],
)
def test_a_scheduler_that_ends_a_job_outranks_a_line_of_an_exception(tmp_path: Path, log: str, cause: str) -> None:
    (tmp_path / "job.log").write_text(log)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause]


@pytest.mark.parametrize("outer", ["<module>", "_bootstrap", "_wrap", "save"])
def test_an_exception_that_is_printed_again_was_not_caught_for_that(tmp_path: Path, outer: str) -> None:
    raised = (
        f'Traceback (most recent call last):\n  File "/usr/lib/python3.12/runpy.py", line 198, in {outer}\n'
        '    return _run_code(code)\n  File "/job/train.py", line 5, in main\n    raise KeyError(1)\nKeyError: 1\n'
    )
    (tmp_path / "job.log").write_text(raised + "\n" + raised)
    evidence = gather(tmp_path / "job.log", Limits())
    assert [error.type for error in evidence.errors] == ["KeyError"]
    assert not any(fact.kind == "handled_error" for fact in evidence.facts)


ABOVE = "step 1 of 900\nstep 2 of 900\n"
FRAMED = 'Traceback (most recent call last):\n  File "/job/train.py", line 30, in main\n    step(batch)\n'
CUT = "    loss = step(batch)\n           ^^^^^^^^^^^\n"


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("torch.cuda.OutOfMemory: CUDA out of memory. Tried to allocate 2.00 GiB\n", "OutOfMemory"),
        ("pkg.mod.SomethingWrong: shard 7 is broken\n\n", "SomethingWrong"),
        ("mylib.ShardMissing\n", "ShardMissing"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("SystemExit: 1\n", "SystemExit"),
        ("[rank1]: mylib.ShardMissing: shard 7\n", "ShardMissing"),
        (CUT + "SomethingWrong: shard 7 is broken\n", "SomethingWrong"),
        ("Traceback (most recent call last):\nSomethingWrong: shard 7 is broken\n", "SomethingWrong"),
        (FRAMED + "SomethingWrong: shard 7 is broken\n", "SomethingWrong"),
        (FRAMED.partition("\n")[2] + "SomethingWrong: shard 7 is broken\n", "SomethingWrong"),
    ],
)
def test_a_last_line_that_only_a_traceback_has(tmp_path: Path, text: str, type_: str) -> None:
    (tmp_path / "train.log").write_text(ABOVE + text)
    (error,) = gather(tmp_path, Limits()).errors
    assert error.type == type_ and error.rank == (1 if "rank1" in text else None)
    assert error.message in text and len(error.frames) == ("File" in text)


@pytest.mark.parametrize(
    "text",
    [
        "Summary: all good\n",
        "LearningRate: 0.1\n",
        "Best checkpoint: out/best.pt\n",
        "trainer.state: saved\n",
        "torch.version: 2.5.1\n",
        "wandb.run: https://example.org\n",
        "see pkg.mod.SomethingWrong: it is documented\n",
        "my.pkg.Trainer: begins\nmy.pkg.Trainer: saved\n",  # A logger.
        "pkg.mod.SomethingWrong: shard 7\nretried, fine\n",
        "SystemExit: 0\n",
        "Traceback (most recent call last):\nEpoch: 3\n",
        FRAMED + "SystemExit: 0\n",
        "Training complete\npkg.mod.SomethingWrong: not uploaded\n",
    ],
)
def test_a_last_line_that_others_write_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.log").write_text(ABOVE + text)
    assert not gather(tmp_path, Limits()).errors


def test_what_a_shell_says_below_a_cut_traceback_is_a_signal(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(ABOVE + FRAMED + "Killed\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_killed"]


LOSES = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3000"
FAILED_ROW = "  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 5002)\n"


@pytest.mark.parametrize("listed", ["", FAILED_ROW])
@pytest.mark.parametrize(
    ("line", "type_"),
    [
        ("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='a', port=443): Read timed out.", "ReadTimeout"),
        ("zipfile.BadZipFile: File is not a zip file", "BadZipFile"),
        ("subprocess.TimeoutExpired: Command 'sleep' timed out after 1 seconds", "TimeoutExpired"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 72.8 TiB for an array", "_ArrayMemoryError"),
        ("TimeoutError", "TimeoutError"),
        ("threading.BrokenBarrierError", "BrokenBarrierError"),
        ("_queue.Empty", "Empty"),
        ("socket.timeout: timed out", "timeout"),
        ("struct.error: unpack requires a buffer of 4 bytes", "error"),
        ("botocore.errorfactory.NoSuchKey: An error occurred", ""),
        ("transformers.Trainer: the model was saved", ""),
        ("torch.nn.SyncBatchNorm", ""),
        ("val.error: 0.125", ""),
        ("Finished", ""),
        ("TrainingComplete", ""),
        ("ValueErrorHandler: installed", ""),
        ("TimeoutError\n[rank2]: trying again", ""),
        ("http.Timeout=30", ""),
    ],
)
def test_the_last_line_of_a_rank_may_be_all_of_its_traceback(
    tmp_path: Path, line: str, type_: str, listed: str
) -> None:
    lost = "".join(f"[rank{rank}]: {LOSES}\n" for rank in (0, 1, 3))
    (tmp_path / "train.log").write_text(f"[rank2]: {line}\n{lost}{listed}")
    evidence = gather(tmp_path, Limits())
    assert [error.type for error in evidence.errors if error.rank == 2 and error.type] == [type_] * bool(type_)
    report = diagnose(tmp_path)
    if type_:
        assert [root.ranks for root in report.root_causes] == [(2,)]
    elif not listed:
        assert not report.root_causes


def test_it_is_none_of_a_rank_of_which_an_exception_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(prefixed(0, "ERROR:root:the upload failed\n" + THREAD + "TimeoutError"))
    assert not gather(tmp_path, Limits()).errors


@pytest.mark.parametrize(
    "behind",
    [
        "".join(f"[rank2]: step {n} loss {3 - n / 10:.2f}\n" for n in range(10)),
        "I1122 10:21:05.1 4000 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 2/3 "
        "attempts left; will restart worker group\n[rank0]: starting\n",
    ],
)
def test_nor_above_what_the_job_survived(tmp_path: Path, behind: str) -> None:
    (tmp_path / "train.log").write_text(f"[rank1]: TimeoutError\n{behind}")
    assert not gather(tmp_path, Limits()).errors
