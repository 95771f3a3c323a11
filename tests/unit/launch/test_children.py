"""Ranks that this process starts: what they tell, how they end, and who is to blame among those that failed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dtk.launch import children as children_module
from dtk.launch.children import Children, Failed, culprit, end_all, inherited, local_ranks


@contextmanager
def started(*scripts: str) -> Iterator[Children]:
    """Start one rank for each script, which the environment hands over."""
    environments = {rank: {**os.environ, "SCRIPT": script} for rank, script in enumerate(scripts)}
    with Children(["-c", "import os; exec(os.environ['SCRIPT'])"], environments) as children:
        yield children


def messages_of(children: Children) -> list[tuple[int, dict[str, Any]]]:
    """Return all lines until the end of all."""
    lines: list[tuple[int, dict[str, Any]]] = []
    ends_s = time.monotonic() + 30
    while not children.ended:
        assert time.monotonic() < ends_s, "the children continue"
        lines += children.lines(0.1)
    return [*lines, *children.lines(0.0)]


def test_what_ranks_tell_is_read_and_other_output_is_not() -> None:
    script = "print('{\"step\": 1}'); print('a library says hello'); print('[1]'); print('{\"step\": 2}')"
    with started(script, "pass") as children:
        assert messages_of(children) == [(0, {"step": 1}), (0, {"step": 2})]
        assert children.failed() == [] and children.running == set()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("raise SystemExit(3)", Failed(0, "ended with exit code 3", "", victim=False)),
        (
            'print(\'{"error": "ValueError: bad"}\', flush=True); raise SystemExit(1)',
            Failed(0, "failed", "ValueError: bad", victim=False),
        ),
        ("import no_such_module", Failed(0, "failed", "ModuleNotFoundError: No module named 'no_such_module'", False)),
        ("import sys; sys.exit('gave up')", Failed(0, "ended with exit code 1", "gave up", victim=False)),
        ("import os; os.abort()", Failed(0, "was killed by SIGABRT", "", victim=True)),
        ("raise RuntimeError('Connection closed by peer [127.0.0.1]:1')", None),
    ],
)
def test_why_a_rank_failed(script: str, expected: Failed | None) -> None:
    with started(script) as children:
        messages_of(children)
        (failed,) = children.failed()
    if expected is None:
        assert failed.victim and failed.error.startswith("RuntimeError: Connection closed by peer")
    else:
        assert failed == expected


def test_a_failure_as_it_follows_the_rank() -> None:
    assert str(Failed(0, "failed", "ValueError: bad", victim=False)) == "failed: ValueError: bad"
    assert str(Failed(0, "ended with exit code 3", "", victim=False)) == "ended with exit code 3"


def test_a_rank_that_lost_another_is_blamed_last() -> None:
    lost, other, first = (Failed(rank, "failed", "", rank == 0) for rank in (0, 2, 1))
    assert culprit([lost, other, first]) is first
    assert culprit([lost]) is lost


def test_no_child_outlives_its_context() -> None:
    with started("import time; time.sleep(60)", "import time; time.sleep(60)") as children:
        assert children.running == {0, 1}
        assert children in children_module._live
    assert children.running == set() and children not in children_module._live


def test_all_children_of_this_process_end_at_once() -> None:
    with started("import time; time.sleep(60)") as children:
        end_all()
        assert children.running == set()
        (failed,) = children.failed()
        assert failed.ended == "was killed by SIGKILL (the kernel does this when memory runs out: see dmesg)"


def test_environments_of_ranks_that_meet_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ranks = local_ranks(2, 3, {"NCCL_DEBUG": "WARN", "NCCL_NTHREADS": "64"})
    assert [ranks[rank]["RANK"] for rank in (0, 1)] == [ranks[rank]["LOCAL_RANK"] for rank in (0, 1)] == ["0", "1"]
    assert {environment["MASTER_PORT"] for environment in ranks.values()} == {ranks[0]["MASTER_PORT"]}
    assert ranks[0]["WORLD_SIZE"] == "2" and ranks[0]["OMP_NUM_THREADS"] == "3"
    assert ranks[0]["NCCL_DEBUG"] == "INFO" and ranks[0]["NCCL_NTHREADS"] == "64", "the user's own value wins"
    assert "TORCHELASTIC_RUN_ID" not in ranks[0]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert local_ranks(1, 3)[0]["OMP_NUM_THREADS"] == "1"


def test_what_is_dtks_own_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    environment = inherited({"RANK": "5", "A": "1"}, RANK="0")
    assert environment["RANK"] == "0" and environment["A"] == "1"
