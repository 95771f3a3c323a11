"""Work that takes longer than the timeout of those who wait for it."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose

BAR = (
    "Running tokenizer on dataset (num_proc=16):  {percent}%|####    | 890000/1000000 [{took}<01:10, 1600 examples/s]\n"
)
WAIT = (
    "[rank{rank}]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 "
    "milliseconds\n"
)
WAITS = "".join(WAIT.format(rank=rank) for rank in (1, 2, 3))
STORE = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/x/torch/distributed/distributed_c10d.py", line 9, '
    "in barrier\n[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
    "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after "
    "600000ms, keys: /default_pg/0//cuda//0\n"
)


@pytest.mark.parametrize(("then", "victims"), [(WAITS, (1, 2, 3)), (STORE, (1,))])
def test_a_bar_that_is_under_way_at_the_timeout(tmp_path: Path, then: str, victims: tuple[int, ...]) -> None:
    (tmp_path / "train.log").write_text(BAR.format(percent=89, took="10:00") + then)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.timeout_budget", (0,), victims)


@pytest.mark.parametrize(
    ("desc", "text"), [("mesh_dp", "of group mesh_dp (600 s)"), ("default_pg", "timeout: init_pro")]
)
def test_the_timeout_to_raise_is_that_of_the_group_that_waited(tmp_path: Path, desc: str, text: str) -> None:
    waits = "".join(
        WAIT.format(rank=rank).replace(f"[Rank {rank}]", f"[PG ID 2 PG GUID 3({desc}) Rank {rank}]")
        for rank in (1, 2, 3)
    )
    (tmp_path / "train.log").write_text(BAR.format(percent=89, took="10:00") + waits)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.timeout_budget" and text in text_of(root).remedies[-1].change


TIMED_OUT = (
    'Traceback (most recent call last):\n  File "/x/torch/distributed/distributed_c10d.py", line 9, in barrier\n'
    "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
    "by key '0', but store->get('0') got error: Socket Timeout\n"
)
"""torch to 2.0, which does not say the timeout."""
SOCKET = (
    "[rank1]:[W516 14:34:56.854597329 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:"
    "41170, remote=[localhost]:29500) timed out after 600000ms\n"
)
POLL = "[rank1]:[W1001 13:40:02.8 socket.cpp:428] [c10d] While waitForInput, poolFD failed with (errno: 0 - Success).\n"
"""torch's store, whose lines precede the traceback; to 2.4 it does not say the timeout."""


@pytest.mark.parametrize(
    ("took", "then"),
    [("10:00", WAITS), ("10:00", STORE), ("30:01", TIMED_OUT), ("10:00", SOCKET), ("30:01", POLL)],
)
def test_a_bar_without_a_newline_in_front_of_what_another_rank_prints(tmp_path: Path, took: str, then: str) -> None:
    (tmp_path / "train.log").write_text(BAR.format(percent=89, took=took).rstrip() + then)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.timeout_budget"]


def test_a_bar_that_is_rounded_to_100_percent_is_under_way(tmp_path: Path) -> None:
    bar = BAR.format(percent=100, took="29:46").replace("890000/", "998500/").rstrip()
    (tmp_path / "train.log").write_text(bar + POLL)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.timeout_budget"]


def test_without_a_stated_timeout_the_work_must_have_taken_the_default(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(BAR.format(percent=89, took="10:00") + TIMED_OUT)
    assert diagnose(tmp_path).root_causes == ()


@pytest.mark.parametrize(
    "before",
    [
        BAR.format(percent=100, took="10:00").replace("890000/", "1000000/"),  # It had ended.
        BAR.format(percent=89, took="00:40"),  # It began long after the others did.
        BAR.format(percent=99, took="10:00") + "".join(f"step {n} loss {2 - n / 99:.3f}\n" for n in range(20)),
        "",
    ],
)
def test_work_that_does_not_explain_the_timeout(tmp_path: Path, before: str) -> None:
    (tmp_path / "train.log").write_text(before + WAITS)
    assert "hang.timeout_budget" not in [root.cause for root in diagnose(tmp_path).root_causes]


def test_a_bar_that_was_drawn_over_itself(tmp_path: Path) -> None:
    drawn = "\r".join(BAR.format(percent=n, took=f"{n // 9:02}:00").rstrip() for n in range(90)) + "\n"
    (tmp_path / "train.log").write_bytes((drawn + WAITS).encode())
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.timeout_budget"]


@pytest.mark.parametrize(
    "bar",
    [
        " 35%|####   | 73811/208140 [10:01<17:14, 39.81MB/s]\n",  # A script's own, without a word in front of it.
        "Loading checkpoint shards:  57%|#####  | 4/7 [09:40<07:29, 149.96s/it]\n",
    ],
)
def test_bars_of_other_work_than_a_data_set_s(tmp_path: Path, bar: str) -> None:
    (tmp_path / "train.log").write_text(bar + WAITS)
    assert [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes] == [("hang.timeout_budget", (0,))]


def test_a_bar_whose_title_is_the_work(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("Tokenizing:  35%|###  | 709/2000 [09:40<10:00, 1.19it/s]\n" + WAITS)
    assert [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes] == [("hang.timeout_budget", (0,))]


@pytest.mark.parametrize(
    ("took", "rank_2", "causes"),
    [
        ("10:01", "", ["hang.timeout_budget"]),
        ("09:58", "", []),
        ("10:01", "step 1 loss 2.0\nstep 2 loss 1.9\n", []),  # The job trained since.
        ("10:01", "late", []),  # Another rank did the same.
    ],
)
def test_work_that_ended_when_its_peers_were_gone(tmp_path: Path, took: str, rank_2: str, causes: list[str]) -> None:
    frame = (
        'Traceback (most recent call last):\n  File "/x/torch/distributed/distributed_c10d.py", line 9, in barrier\n'
    )
    late = f"Tokenizing: 100%|####| 2000/2000 [{took}<00:00, 3.3it/s]\n{frame}RuntimeError: {CLOSED}"
    waits = "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete\n"
    for rank, text in enumerate((late, f"{frame}RuntimeError: {waits}", rank_2.replace("late", late))):
        (tmp_path / f"rank_{rank}.log").write_text(text)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == causes


BARRIER = (
    "[E ProcessGroupGloo.cpp:138] Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
    "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)
CLOSED = "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:35230\n"
RAISED = 'Traceback (most recent call last):\n  File "prepare.py", line 3, in tokens\n    row[8]\nIndexError: 8\n'


@pytest.mark.parametrize(
    ("took", "then", "causes"),
    [
        ("40:00", BARRIER, ["hang.timeout_budget"]),
        ("00:40", BARRIER, []),  # It began long after the others did.
        ("40:00", BARRIER + CLOSED, []),  # Rank 0 is gone.
        ("40:00", RAISED + BARRIER, ["hang.rank_raised"]),
    ],
)
def test_a_bar_in_front_of_a_monitored_barrier(tmp_path: Path, took: str, then: str, causes: list[str]) -> None:
    (tmp_path / "train.log").write_text(BAR.format(percent=89, took=took).rstrip() + then)
    roots = diagnose(tmp_path).root_causes
    assert [root.cause for root in roots] == causes
    assert "hang.timeout_budget" not in causes or ((roots[0].ranks, roots[0].victims) == ((0,), (2,)))


def test_the_bar_of_the_steps_is_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("  2%|#   | 130/6200 [10:07<50:20,  4.98s/it]\n" + WAITS)
    assert not diagnose(tmp_path).root_causes


@pytest.mark.parametrize(
    ("bar", "ranks", "change"),
    [
        ("Loading checkpoint shards:  57%|#####  | 4/7 [09:40<07:29, 149.96s/it]\n", (), "from a disk of the node"),
        (BAR.format(percent=89, took="10:00"), (0,), "prepare the data set"),
    ],
)
def test_what_is_loaded_is_loaded_by_every_rank(tmp_path: Path, bar: str, ranks: tuple[int, ...], change: str) -> None:
    (tmp_path / "train.log").write_text(bar + "".join(WAIT.format(rank=rank) for rank in (1, 3)))
    (root,) = diagnose(tmp_path).root_causes
    assert root.ranks == ranks and change in text_of(root).remedies[0].change
    assert "raise the timeout" in text_of(root).remedies[1].change


@pytest.mark.parametrize(
    ("bar", "cause"),
    [
        ("Preparing the validation set...:  40%|####      | 31/77 [29:41<44:03, 57.46s/it]\n", "hang.timeout_budget"),
        ("Caching images (3.1GB RAM):  12%|#2        | 900/7500 [30:02<3:40:10,  2.00s/it]\n", "hang.timeout_budget"),
        ("Epoch 3:  40%|####      | 31/77 [29:41<44:03, 57.46s/it]\n", ""),
    ],
)
def test_a_bar_of_named_work_whose_units_are_those_of_steps(tmp_path: Path, bar: str, cause: str) -> None:
    (tmp_path / "train.log").write_text(bar + WAITS.replace("600000", "1800000").replace("600033", "1800033"))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause][: len(cause)]


STEPS = "".join(f"step {n} loss {2 - n / 999:.3f}\n" for n in range(300))


@pytest.mark.parametrize(
    ("work", "confidence"),
    [
        ("Copying checkpoint to s3://b/ckpt:  43%|####▎     | 43/100 [10:02<13:18, 14.0s/it]\n", 0.75),
        ("[rank0]: Uploading artifacts:  43%|####▎     | 4300/9999 [10:02<13:18,  7.14it/s]\n", 0.75),
        ("[rank0]: SingleProcess AUTOTUNE benchmarking takes 612.3 seconds and 0.01 seconds precompiling\n", 0.7),
        ("[rank0]: 2026-11-22 10:20:44 INFO document index rebuilt in 10.4 minutes\n", 0.7),
        ("[rank0]: Checkpoint written to /mnt/out, elapsed: 0:10:31\n", 0.7),
    ],
)
@pytest.mark.parametrize("before", [STEPS, ""])
def test_any_long_work_of_one_rank(tmp_path: Path, work: str, confidence: float, before: str) -> None:
    (tmp_path / "train.log").write_text(before + work + WAITS)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.timeout_budget", (0,), (1, 2, 3))
    assert root.confidence == confidence and "do this work before the job" in text_of(root).remedies[0].change


@pytest.mark.parametrize(
    "work",
    [
        "Epoch 3:  43%|####      | 43/100 [10:02<13:18, 14.0s/it, loss=2.31]\n",  # All ranks do it.
        "Validation DataLoader 0:  43%|####      | 43/100 [10:02<13:18, 14.0s/it]\n",
        "[rank0]: Evaluation took 612.3 seconds\n",
        "[rank0]: epoch 3 done in 612 s\n",
        "[rank1]: Copying files:  43%|####▎     | 43/100 [10:02<13:18, 14.0s/it]\n",  # That rank waits.
        "[rank0]: Copying files:  43%|####▎     | 43/100 [01:02<01:18, 14.0s/it]\n",  # It began far later.
        "[rank0]: Copying files: 100%|##########| 100/100 [10:02<00:00, 14.0s/it]\n" + STEPS[:500],
        "[rank0]: index rebuilt in 61.2 seconds\n",
        "[rank0]: index rebuilt in 5400 seconds\n",  # The launcher had ended the job before.
        "[rank0]: index rebuilt in 612 seconds\n" + STEPS,
        "[rank0]: the store timed out, no reply took 612 seconds\n",
        "".join(f"[rank{rank}]: index rebuilt in 612 seconds\n" for rank in (1, 0)),
        "rank 0 will be retried in 612 seconds\n",
        "[rank0]: 2026-11-22 10:12:30 INFO document index rebuilt in 612 seconds\n",  # The others began to wait since.
    ],
)
def test_work_of_all_ranks_or_of_another_time(tmp_path: Path, work: str) -> None:
    (tmp_path / "train.log").write_text(STEPS + work + WAITS)
    assert "hang.timeout_budget" not in [root.cause for root in diagnose(tmp_path).root_causes]
