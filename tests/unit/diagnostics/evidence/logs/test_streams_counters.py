"""Numbers that rise above a traceback and go on below it show that the process survived; others show nothing."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

RAISED = """\
Traceback (most recent call last):
  File "/job/data/loader.py", line 55, in fetch
    return self.client.get(key)
ConnectionError: 503 from storage
"""
FORMATS = {
    "bracket": "[{0}/900] acc 0.5{0}\n",
    "words": "2026-11-02 10:00:00,123 INFO trainer: processed {1} samples in 0.31 s (206 samples/s)\n",
    "table": "{0:6d}    2.9543   0.00100\n",
    "dict": "{{'it': {0}, 'reward': 0.7}}\n",
    "generation": "generation {0}: best fitness 0.91 (population 64)\n",
}


def lines(name: str, first: int, last: int) -> str:
    return "".join(FORMATS[name].format(n, n * 64) for n in range(first, last))


def is_confirmed(folder: Path, text: str) -> bool:
    (folder / "train.log").write_text(text)
    report = diagnose(folder)
    assert report.outcome == ("crashed" if report.root_causes else "undecided")
    return any(root.cause == "hang.rank_raised" for root in report.root_causes)


@pytest.mark.parametrize("name", [*FORMATS])
@pytest.mark.parametrize(("last", "confirmed"), [(50, False), (21, False), (20, True)])
def test_what_rose_above_goes_on(tmp_path: Path, name: str, last: int, confirmed: bool) -> None:
    text = f"{lines(name, 0, 20)}WARNING: cannot fetch shard 17\n{RAISED}"
    assert is_confirmed(tmp_path, text + lines(name, 20, last)) == confirmed


@pytest.mark.parametrize(
    "after",
    [
        "".join(f"[monitor] beat {n} of node-1\n" for n in range(9, 90)),
        "".join(f"Sending process {n} closing signal SIGTERM\n" for n in range(4000, 4008)),
        "".join(f"worker {n} stopped\n" for n in range(30)),
        "".join(f"[{n}/900] acc 0.5 (replayed)\n" for n in range(20)),
        "".join(f"2026-11-02 10:{n:02d}:00,123 INFO io: flushed\n" for n in range(9, 40)),
    ],
)
def test_what_others_count_is_no_progress_of_the_steps(tmp_path: Path, after: str) -> None:
    above = "".join(f"[{n}/900] acc 0.5\n" + f"[monitor] beat {n // 3} of node-1\n" * (n % 3 == 0) for n in range(27))
    assert is_confirmed(tmp_path, above + RAISED + after)


@pytest.mark.parametrize(
    ("before", "after", "confirmed"),
    [
        ("", "Training complete\n", False),
        ("", "saving the model\ntraining finished\nbye\n", False),
        (
            "*** Setting OMP_NUM_THREADS environment variable for each process to be 1 ***\n",
            "Training complete\n",
            True,
        ),
        ("", "Training complete\n[0] exited with code 1\nrank 1 exited with code 1\n", True),
        ("", "wrote the emergency checkpoint\nDone.\n", True),
        ("Training complete\n", "", True),
    ],
)
def test_an_end_in_order(tmp_path: Path, before: str, after: str, confirmed: bool) -> None:
    assert is_confirmed(tmp_path, before + RAISED + after) == confirmed


def test_a_launcher_s_word_is_that_of_all_ranks(tmp_path: Path) -> None:
    head = "*** Setting OMP_NUM_THREADS environment variable for each process to be 1 ***\n"
    end = "I1120 10:00:00.000000 77 torch/distributed/elastic/agent/server/api.py:899] [default] worker group successfully finished.\n"  # noqa: E501
    assert is_confirmed(tmp_path, head + RAISED)
    assert not is_confirmed(tmp_path, head + RAISED + end)


def test_a_table_of_numbers_is_no_block_of_code(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(lines("table", 1, 30) + RAISED.replace("return self", "try: self"))
    (root,) = diagnose(tmp_path).root_causes
    assert [place.line for place in root.where] == [55]
    block = "".join(f"    {line}\n" for line in ("step 1 of 9", "step 2 of 9", *RAISED.splitlines()))
    assert is_confirmed(tmp_path, block)


@pytest.mark.parametrize(
    ("above", "below", "goes_on"),
    [
        (["step 1", "step 2", "step 3", "step 4"], ["step 5", "step 6", "step 7"], True),
        (["step 1", "step 2", "step 3", "step 4"], ["step 5"], True),
        (["step 3", "step 4"], ["step 5"], True),
        (["step 3"], ["step 4"], False),
        (["step 1", "step 2", "step 3", "step 4"], ["step 2", "step 3", "step 4"], False),
        (["epoch 1 step 98", "epoch 1 step 99"], ["epoch 2 step 1", "epoch 2 step 2", "epoch 2 step 3"], True),
        ([], ["step 5", "step 6", "step 7"], True),
        ([], ["wandb: epoch 3", "wandb: step 100", "wandb: batch 16"], False),
        (["iter 1", "iter 2", "iter 3", "iter 4"], ["copied batch 1", "copied batch 2", "copied batch 3"], False),
        (["iter 1", "iter 2", "iter 3", "iter 4"], ["keep step 5, step 6", "keep step 7"], False),
        (["epoch 1 loss 2", "epoch 2 loss 2"], ["epoch 1: 2.0", "epoch 2: 2.0"], False),
        (["item 1", "item 2"], ["item 3", "item 4", "item 5"], False),
        (["heartbeat 1", "heartbeat 2", "heartbeat 3"], ["heartbeat 4", "heartbeat 5", "heartbeat 6"], False),
        (["rank 0", "rank 1", "rank 2", "rank 3"], ["rank 0", "rank 1", "rank 2", "rank 3"], False),
        (["step 41%", "step 42%", "step 43%"], ["step 45%", "step 46%", "step 47%"], False),
        ([f"at 10:00:0{n}" for n in range(5)], [f"at 10:00:0{n}" for n in range(5, 9)], False),
        ([f"{'x' * 500} step {n}" for n in range(5)], [f"{'x' * 500} step {n}" for n in range(5, 9)], False),
    ],
)
def test_which_steps_count(tmp_path: Path, above: list[str], below: list[str], goes_on: bool) -> None:
    text = "\n".join([*above, RAISED.rstrip(), *below, ""])
    assert is_confirmed(tmp_path, text) != goes_on


NCCL = "[rank0]:[E701 10:40:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=512, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600040 milliseconds before timing out.\n"  # noqa: E501
EXIT = "E0701 10:30:06.125000 4242 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 4303) of binary: python3\n"  # noqa: E501


OTHER = """\
Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    main()
KeyError: 'labels'
"""
LOST = OTHER.replace("KeyError: 'labels'", "RuntimeError: Connection closed by peer [10.0.0.4]:4512")


def steps(first: int, last: int, *ranks: str) -> str:
    return "".join(f"{rank}step {n} loss {9 - n / 100:.2f}\n" for n in range(first, last) for rank in ranks or ("",))


def prefixed(text: str) -> str:
    return "".join(f"[rank3]: {line}\n" for line in text.splitlines())


ALL, PEERS = ("[rank0]: ", "[rank3]: "), ("[rank0]: ", "[rank1]: ")


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        # Only the steps of the rank itself show that it survived, or more than its peers can print.
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 26, *PEERS), True),
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 26, *PEERS) + EXIT, True),
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 26, *ALL), False),
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 90, *PEERS), False),
        (steps(0, 20) + prefixed(RAISED) + steps(20, 26), True),
        # Without prefixes the job must not have failed behind it.
        (steps(0, 20) + RAISED + steps(20, 26), False),
        (steps(0, 20) + RAISED + steps(20, 26) + EXIT, True),
        (steps(0, 20) + RAISED + steps(20, 26) + "Resuming from checkpoint step 20\n" + steps(20, 30) + EXIT, False),
        (steps(0, 20) + RAISED + steps(20, 26) + EXIT.replace("exitcode: 1", "exitcode: -9"), False),
        (steps(0, 20) + RAISED + steps(20, 90) + EXIT, False),
        # What was printed before is no progress.
        (steps(0, 20) + RAISED + "History:\n" + steps(0, 20), True),
        (steps(0, 20) + RAISED + steps(12, 30) + EXIT, False),  # A new attempt.
        # A process that raised another exception later had survived this one.
        (steps(0, 20) + RAISED + steps(20, 23) + OTHER + EXIT, False),
        (steps(0, 20) + RAISED + steps(20, 60) + OTHER + EXIT, False),
        (steps(0, 20) + RAISED + steps(20, 22) + OTHER + EXIT, False),
        (steps(0, 20) + RAISED + OTHER + EXIT, True),
        (steps(0, 20) + RAISED + steps(20, 22) + EXIT, True),
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 22, *ALL), False),
        (steps(0, 20, *ALL) + prefixed(RAISED) + steps(20, 22, *ALL) + EXIT, True),
        (steps(0, 20) + RAISED + steps(20, 26) + LOST + EXIT, True),
        # Of several ranks that print each step, the one that raised it prints no more.
        (steps(0, 20, "", "") + RAISED + steps(20, 26, "", "") + OTHER + EXIT, False),
        (steps(0, 20, "", "") + RAISED + steps(20, 26) + OTHER + EXIT, True),
        (steps(0, 20, "", "") + RAISED + steps(20, 26), True),
        (steps(0, 20) + steps(15, 20) + RAISED + steps(20, 26), False),
    ],
)
def test_who_survived(tmp_path: Path, text: str, fatal: bool) -> None:
    (tmp_path / "train.log").write_text(text)
    errors = [error.message for error in gather(tmp_path, Limits()).errors if error.type]
    assert ("503 from storage" in errors) == fatal


def test_a_timeout_of_the_peers_shows_that_the_rank_died(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(steps(0, 20) + RAISED + steps(20, 26) + NCCL)
    assert [error.type for error in gather(tmp_path, Limits()).errors] == ["ConnectionError"]


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("", "", "crashed"),
        ("", steps(0, 40), "open"),
        (steps(0, 20), steps(20, 50), "open"),
        (steps(0, 20), steps(20, 50) + "srun: error: n1: task 0: Exited with exit code 1\n", "crashed"),
        (steps(0, 20), steps(20, 90) + EXIT, "crashed"),
        (steps(0, 20), steps(20, 50) + "saved the model\n", "went on"),  # Something else than steps follows.
        (steps(0, 20), steps(20, 900), "went on"),  # More than a buffer holds.
        (steps(0, 20), steps(0, 30), "went on"),  # A new run.
        (OTHER.replace("main()", "other()") + steps(0, 20), steps(20, 50), "went on"),  # One of them was caught.
    ],
)
def test_steps_below_an_uncaught_exception_may_have_been_printed_before_it(
    tmp_path: Path, before: str, after: str, outcome: str
) -> None:
    (tmp_path / "train.log").write_text(before + OTHER + after)
    report = diagnose(tmp_path)
    assert any(root.cause == "hang.rank_raised" for root in report.root_causes) == (outcome == "crashed")
    assert ("steps below an exception (KeyError: 'labels')" in report.statement) == (outcome == "open")
    assert any("had been printed before" in note for note in report.notes) == (outcome == "open")


@pytest.mark.parametrize(
    ("above", "fatal"), [("10:20:00", True), ("10:03:00", False), ("12:10:00", False), ("", False)]
)
def test_dates_tell_that_steps_below_an_exception_were_printed_before_it(
    tmp_path: Path, above: str, fatal: bool
) -> None:
    dated = "".join(f"2031-11-20 10:{n // 6:02}:{n % 6}0 step {n} loss {9 - n / 100:.2f}\n" for n in range(60, 90))
    warning = f"2031-11-20 {above} WARNING: slow batch\n" if above else ""
    (tmp_path / "train.log").write_text(warning + OTHER + dated)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_raised"] * fatal


SIGTERM = "W0701 10:30:06.1 4242 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4303 closing signal SIGTERM\n"  # noqa: E501
HYDRA = "Error executing job with overrides: ['lr=1']\n"


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (steps(0, 20) + OTHER, 0.95),
        (steps(0, 20) + OTHER + steps(20, 21), 0.6),  # Written late, or a peer's, or it was caught.
        (steps(0, 20) + OTHER + steps(20, 22), 0.6),
        (steps(0, 20) + OTHER + steps(19, 20), 0.95),  # No progress.
        (steps(0, 20) + OTHER + steps(20, 22) + EXIT, 0.8),  # Of which node is unknown.
        (steps(0, 20) + OTHER + steps(20, 22) + SIGTERM, 0.95),
        (steps(0, 20) + prefixed(OTHER) + steps(20, 22), 0.95),  # Of its own writer nothing follows.
        # A handler printed it: its frames do not begin where a process does, or a logger's line stands above.
        (steps(0, 20) + RAISED + steps(20, 21), 0),
        (steps(0, 20) + "2031-07-01 10:00:00 ERROR upload failed\n" + OTHER + steps(20, 21), 0),
        (steps(0, 20) + "upload failed, skipping it\n" + OTHER + steps(20, 21), 0),
        (steps(0, 20) + RAISED, 0.8),
        (steps(0, 20) + RAISED + "\n", 0.8),
        (steps(0, 20) + RAISED + "evaluation: accuracy 0.7\n", 0.6),
        (steps(0, 20) + RAISED + "evaluation: accuracy 0.7\n" + EXIT, 0.8),
        (steps(0, 20) + OTHER + "evaluation: accuracy 0.7\n", 0.95),
        (steps(0, 20) + HYDRA + RAISED + steps(20, 21), 0.6),  # Hydra leaves its own frames out.
    ],
)
def test_how_sure_it_is_that_an_exception_with_steps_below_it_was_fatal(
    tmp_path: Path, text: str, confidence: float
) -> None:
    (tmp_path / "train.log").write_text("world size: 1\n" + text)
    assert [root.confidence for root in diagnose(tmp_path).root_causes] == [confidence] * bool(confidence)


OOM = "[rank1]: {}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize("level", ["WARNING skipped the batch: ", ""])
@pytest.mark.parametrize(("below", "survived"), [(steps(20, 30, *PEERS), True), (steps(20, 30, "[rank0]: "), False)])
def test_a_rank_that_prints_steps_had_memory_again(tmp_path: Path, level: str, below: str, survived: bool) -> None:
    (tmp_path / "train.log").write_text(steps(0, 20, *PEERS) + OOM.format(level) + below)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_oom"] * (not survived)


@pytest.mark.parametrize(("last", "fatal"), [(22, False), (20, True)])
def test_a_label_of_srun_is_no_part_of_the_steps(tmp_path: Path, last: int, fatal: bool) -> None:
    def of_ranks(first: int, end: int) -> str:
        return "".join(f"{rank}: step {n} loss {9 - n / 100:.2f}\n" for n in range(first, end) for rank in range(4))

    caught = "".join(f"2: {line}\n" for line in RAISED.splitlines())
    (tmp_path / "train.log").write_text(of_ranks(0, 20) + caught + of_ranks(20, last))
    assert [root.ranks for root in diagnose(tmp_path).root_causes] == [(2,)] * fatal


@pytest.mark.parametrize("more", ["", EXIT.replace("local_rank: 3", "local_rank: 0")])
def test_a_row_of_megatron_is_no_part_of_a_message(tmp_path: Path, more: str) -> None:
    row = " [2031-01-02 10:{0}:00] iteration       {0}/   10000 | consumed samples: 64 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 |\n"  # noqa: E501
    rows = [row.format(n) for n in range(10, 40)]
    (tmp_path / "train.log").write_text("".join([*rows[:20], OTHER, *rows[20:22], more]))
    (root,) = diagnose(tmp_path).root_causes
    assert root.confidence == (0.95 if more else 0.6) and "KeyError: 'labels' (train.py:9)" in text_of(root).summary


def test_what_a_handler_printed_is_only_suspected_beside_an_exit_code(tmp_path: Path) -> None:
    table = "  time      : 2031-07-01_10:30:05\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 4303)\n"
    (tmp_path / "train.log").write_text(steps(0, 20) + RAISED + steps(20, 22) + EXIT + table)
    report = diagnose(tmp_path)
    (finding,) = (each.finding for each in report.findings if each.finding.cause == "hang.rank_raised")
    assert not report.root_causes and finding.suspected and finding.ranks == (3,)


def test_an_exception_beside_a_rank_that_waits_is_not_that_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(steps(0, 20) + OTHER + steps(20, 22) + NCCL)
    assert [root.ranks for root in diagnose(tmp_path).root_causes] == [()]


@pytest.mark.parametrize(("second", "ranks"), [("app-2  | ", ()), ("app-1  | ", (0,))])
def test_of_two_services_of_docker_compose_either_may_have_raised_it(
    tmp_path: Path, second: str, ranks: tuple[int, ...]
) -> None:
    parts = ((steps(0, 20), "app-1  | "), (OTHER, second))
    (tmp_path / "train.log").write_text("".join(f"{of}{line}\n" for text, of in parts for line in text.splitlines()))
    assert [root.ranks for root in diagnose(tmp_path).root_causes] == [ranks]


@pytest.mark.parametrize("head", ["[rank{}] ERROR: ", "| ERROR | rank {} | ", "ERROR trainer (rank={}): "])
def test_the_rank_that_a_logger_puts_in_front_of_each_line_of_a_traceback(tmp_path: Path, head: str) -> None:
    text = "".join(f"2031-07-01 10:00:05,123 {head.format(2)}{line}\n" for line in OTHER.splitlines())
    text += "".join(f"2031-07-01 10:00:06,123 {head.format(1)}{line}\n" for line in LOST.splitlines())
    (tmp_path / "train.log").write_text(text)
    assert [(root.ranks, root.victims) for root in diagnose(tmp_path).root_causes] == [((2,), (1,))]


@pytest.mark.parametrize(("file", "caught"), [("python/ray/_raylet.pyx", False), ("/job/loader.py", True)])
@pytest.mark.parametrize(("writer", "own"), [("(Worker pid=7, ip=10.0.0.2) ", True), ("", False)])
def test_with_prefixes_steps_of_another_writer_show_nothing_of_it(
    tmp_path: Path, file: str, caught: bool, writer: str, own: bool
) -> None:
    raised = RAISED.replace("/job/data/loader.py", file)
    text = steps(0, 20, writer) + "".join(f"(Worker pid=7, ip=10.0.0.2) {line}\n" for line in raised.splitlines())
    (tmp_path / "train.log").write_text(text + steps(20, 22, writer))
    confidence = (0 if caught else 0.6) if own else 0.6 if caught else 0.8
    assert [root.confidence for root in diagnose(tmp_path).root_causes] == [confidence] * bool(confidence)
