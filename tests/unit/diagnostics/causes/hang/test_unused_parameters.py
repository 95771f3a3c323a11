"""Gradients that never become ready: a bucket is not reduced on some ranks."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.hang.examples import bucket_not_ready

CAUSE = "hang.unused_parameters"
DDP = (
    "[rank{rank}]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
    "This error indicates that your module has parameters that were not used in producing loss.\n"
    "[rank{rank}]: Parameter indices which did not receive grad for rank {rank}: 2 3\n"
)


def test_the_rank_that_left_the_pass_is_blamed(tmp_path: Path) -> None:
    Example(bucket_not_ready).write(tmp_path)
    (root,) = diagnose(tmp_path).root_causes
    text = text_of(root)
    assert (root.cause, root.ranks) == (CAUSE, (1,))
    assert text.summary.startswith(
        "Rank 1 left the backward pass without all_reduce [300] float32 (#7, train.py:60), in which rank 0"
    )
    assert "find_unused_parameters=True in DDP" in text.remedies[-1].change


@pytest.mark.parametrize("ranks", [(1,), (0, 2)])
def test_ddps_own_message_names_the_ranks(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + "".join(DDP.format(rank=rank) for rank in ranks))
    report = diagnose(tmp_path)
    (root,) = report.root_causes
    assert (root.cause, root.ranks, report.outcome) == (CAUSE, ranks, "crashed")
    assert "without a gradient for some parameters" in text_of(root).summary
    assert [remedy.kind for remedy in text_of(root).remedies] == ["code"], "overrides are for dtk runs"


def test_only_ranks_that_the_log_shows_are_called_victims(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(DDP.format(rank=3))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.ranks, root.victims) == ((3,), ())


def test_a_whole_traceback_of_ddp_without_a_rank_is_of_no_rank_in_particular(tmp_path: Path) -> None:
    error = DDP.splitlines()[0].removeprefix("[rank{rank}]: ")
    frame = '  File "/job/train.py", line 9, in <module>\n    loss = model(x)\n'
    (tmp_path / "job.log").write_text(f"Traceback (most recent call last):\n{frame}{error}\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (CAUSE, ())


TIMED_OUT = (
    "[rank{rank}]:[E1120 08:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for "
    "600012 milliseconds\n"
)


@pytest.mark.parametrize(("after", "causes"), [(True, []), (False, [CAUSE])])
def test_what_ddp_says_after_a_timeout_of_the_rank_is_an_effect(tmp_path: Path, after: bool, causes: list[str]) -> None:
    error = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 9, in <module>\n'
        f"[rank1]:     loss = model(x)\n{DDP.splitlines()[0].format(rank=1)}\n"
    )
    waits = TIMED_OUT.format(rank=1) if after else TIMED_OUT.format(rank=0)
    (tmp_path / "job.log").write_text(waits + error if after else error + waits)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == causes
