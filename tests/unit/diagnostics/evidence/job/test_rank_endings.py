"""Which ending counts where several files tell of one rank, and what follows from the ranks that nobody lists."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import Status
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.job.rank_endings import (
    add_unnamed,
    after_timeout,
    mismatch_facts,
    peer_vanished,
    rank_endings,
    settle_exit_codes,
)
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, RunEvidence
from diagnostics.evidence.readers.log import read_text

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.7.7]:57000"


def evidence(*errors: RankError, facts: tuple[LogFact, ...] = (), **more: Any) -> Evidence:
    return Evidence(Path("nowhere"), Limits(), errors=list(errors), facts=list(facts), **more)


def error(rank: int | None, type_: str = "", message: str = "", **more: Any) -> RankError:
    return RankError(rank, more.pop("file", "log"), 1, type_, message, **more)


def kinds(evidence: Evidence) -> dict[int, str]:
    return {rank: ending.kind for rank, ending in rank_endings(evidence).items()}


def test_the_ending_that_says_most_counts() -> None:
    result = evidence(
        error(0, exit_code=1), error(0, "RuntimeError", GLOO), error(1, signal="SIGTERM"), error(1, "KeyError", "'x'"),
        error(2, exit_code=1), error(2, exit_code=-9, signal="SIGKILL"),
        facts=(LogFact("cuda_oom", 1, "out", 4, "CUDA out of memory."),),
    )  # fmt: skip
    assert kinds(result) == {0: "lost_peer", 1: "oom", 2: "killed"}


def test_of_two_alike_the_one_with_a_traceback() -> None:
    frame = Frame("train.py", 3, "f")
    result = evidence(error(0, "KeyError", "'x'"), error(0, "KeyError", "'x'", frames=(frame,)))
    assert rank_endings(result)[0].frames == (frame,)


def test_records_without_a_rank_or_about_the_watch_are_no_ending_of_a_rank() -> None:
    assert kinds(evidence(error(None, "KeyError"), error(-3, "KeyError"), error(0, exit_code=75))) == {}


def test_an_exit_event_of_a_run_counts_where_nothing_else_is_known() -> None:
    end = [{"kind": "event", "name": "end", "exit_code": 0, "time_s": 4.0}]
    run = RunEvidence(Path("nowhere"), Status("failed", exit_code=1), {}, {}, {}, {}, {}, {0: end, 1: end, 2: []})
    endings = rank_endings(evidence(error(1, "ValueError", "x"), run=run))
    assert {rank: (ending.kind, ending.in_order) for rank, ending in endings.items()} == {
        0: ("exited", True), 1: ("raised", False)
    }  # fmt: skip


@pytest.mark.parametrize("with_torchrun", [False, True])
def test_a_task_of_slurm_is_a_rank_unless_torchrun_ran_in_it(with_torchrun: bool) -> None:
    task = LogFact("srun_task", None, "out", 1, "srun: x", {"ranks": [2], "why": "Killed"})
    inner = (LogFact("torchrun_signal", None, "out", 2, "x", {"pid": 4}),) if with_torchrun else ()
    assert kinds(evidence(facts=(task, *inner))) == ({} if with_torchrun else {2: "killed"})


def test_the_rank_that_torchrun_does_not_list_had_ended() -> None:
    listed = LogFact("torchrun_list", None, "out", 9, "x", {"ranks": [0, 2], "pids": [10, 12]})
    stopped = LogFact("torchrun_signal", None, "out", 5, "x", {"pid": 12})
    last = LogFact("torchrun_failed", None, "out", 7, "ChildFailedError:")  # Which names no process.
    for facts in ((listed, stopped), (listed, stopped, last)):
        endings = rank_endings(evidence(error(0, "RuntimeError", GLOO), facts=facts))
        assert endings[1].in_order and endings[0].kind == "lost_peer"
    assert 1 not in rank_endings(evidence(error(0, "KeyError", "'x'"), facts=(listed, stopped)))


def test_a_sigint_of_one_rank_alone_killed_it() -> None:
    listed = LogFact("torchrun_list", None, "out", 9, "x", {"ranks": [0], "pids": [10]})
    assert kinds(evidence(error(0, signal="SIGINT"), facts=(listed,))) == {0: "killed"}
    assert kinds(evidence(error(0, signal="SIGINT"))) == {0: "stopped"}


def test_a_lone_exit_code_of_1_is_its_own_unless_others_wait() -> None:
    endings = rank_endings(evidence(error(0, exit_code=1)))
    assert settle_exit_codes(endings, others=False)[0].kind == "raised"
    assert settle_exit_codes(endings, others=True)[0].kind == "failed"
    both = rank_endings(evidence(error(0, exit_code=1), error(1, exit_code=1)))
    assert {ending.kind for ending in settle_exit_codes(both, others=False).values()} == {"failed"}


def test_the_only_exception_without_a_rank() -> None:
    result = evidence(error(None, "KeyError", "'x'"), error(None, "RuntimeError", GLOO), error(1, "RuntimeError", GLOO))
    endings = rank_endings(result)
    assert add_unnamed(result, endings, [0])[0].kind == "raised"
    assert add_unnamed(result, endings, [0, 2])[UNNAMED].kind == "raised"
    result.errors.append(error(None, "ValueError", "another"))
    assert set(add_unnamed(result, endings, [0])) == {1}


def test_a_peer_vanished_where_a_connection_closed_and_nothing_timed_out() -> None:
    closed = evidence(error(0, "RuntimeError", GLOO))
    assert peer_vanished(closed, rank_endings(closed))
    late = evidence(error(0, "RuntimeError", GLOO), facts=(LogFact("gloo_timeout", 1, "out", 1, "x"),))
    assert not peer_vanished(late, rank_endings(late))
    own = evidence(error(0, "RuntimeError", "shape mismatch, connection closed by the user"))
    assert not peer_vanished(own, rank_endings(own))


def test_lines_that_name_a_mismatch() -> None:
    facts = (
        LogFact("gloo_mismatch", 0, "out", 1, "4096 vs 32"),
        LogFact("dist_backend_error", 0, "out", 2, "Detected mismatch between collectives on ranks."),
        LogFact("nccl_warn", 0, "out", 3, "shape mismatch"),
    )
    assert [fact.line for fact in mismatch_facts(evidence(facts=facts))] == [1, 2]


def fact(
    kind: str, rank: int | None = None, line: int = 1, text: str = "", file: str = "log", **fields: Any
) -> LogFact:
    return LogFact(kind, rank, file, line, text, fields)


KILLED = error(1, exit_code=-9, signal="SIGKILL")
LISTED = fact("torchrun_list", ranks=[1], pids=[88], rank_of={88: 1})


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (fact("kernel_oom", kills=1), "cgroup"),
        (fact("kernel_oom", pid=88, cgroup="Memory cgroup"), "cgroup"),
        (fact("kernel_oom", pid=88), "host_memory"),
        (fact("kernel_oom", pid=5, constraint="CONSTRAINT_MEMCG"), "cgroup"),
        (fact("kernel_oom", text="Reason: OOMKilled"), "cgroup"),
        (fact("srun_task", why="Out Of Memory", ranks=[0]), "cgroup"),
    ],
)
def test_a_kill_that_came_from_the_kernel_is_out_of_memory(said: LogFact, detail: str) -> None:
    ending = rank_endings(evidence(KILLED, facts=(LISTED, said)))[1]
    assert (ending.kind, ending.detail, ending.evidence.file) == ("oom", detail, "log")


def test_more_kills_than_the_kernel_tells_of_stay_kills() -> None:
    killed = [error(rank, exit_code=-9, signal="SIGKILL") for rank in (1, 2)]
    assert kinds(evidence(*killed, facts=(fact("kernel_oom", kills=1),))) == {1: "killed", 2: "killed"}
    by_pid = fact("torchrun_list", ranks=[1, 2], pids=[88, 89], rank_of={88: 1, 89: 2})
    assert kinds(evidence(*killed, facts=(fact("kernel_oom", pid=89), by_pid))) == {1: "killed", 2: "oom"}


def test_what_comes_after_a_ranks_own_timeout_is_an_effect() -> None:
    result = evidence(
        RankError(0, "log", 9, "RuntimeError", "DDP expects same model across all ranks, but Rank 0 has 51 params"),
        RankError(1, "log", 3, "ValueError", "bad batch"),
        RankError(2, "list", 9, "", "killed", signal="SIGABRT", exit_code=-6),
        RankError(3, "log", 9, "KeyError", "'x'"),
        facts=(
            fact("watchdog_timeout", 0, 5), fact("watchdog_timeout", 1, 5), fact("watchdog_status", 2, 5, work=7),
            fact("watchdog_status", 3, 5, last_enqueued=7),
        ),
    )  # fmt: skip
    assert set(after_timeout(result, rank_endings(result))) == {0, 2}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (fact("cuda_oom", text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (fact("cuda_oom", text="RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (fact("cuda_oom", text="autotune skips a config: CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (fact("kernel_oom", pid=7, name="python3", cgroup="Memory cgroup"), "oom"),
        (fact("kernel_oom", text="Reason: OOMKilled"), "oom"),
        (fact("kernel_oom", pid=7, name="mysqld"), None),
    ],
)
def test_memory_without_a_rank(said: LogFact, kind: str | None) -> None:
    assert {end.kind for end in add_unnamed(evidence(facts=(said,)), {}, []).values()} == ({kind} if kind else set())
    raised = {0: rank_endings(evidence(error(0, "ValueError", "x")))[0]}
    assert add_unnamed(evidence(facts=(said,)), raised, []) == raised


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was", "raised"),
        ("Process group watchdog thread terminated with exception: CUDA error: driver shutting down", None),
        ("caught CUDA error: an illegal memory access was encountered, skipping the batch", None),
        ("n1:4:5 [1] transport/nvls.cc:246 NCCL WARN Cuda failure 3 'initialization error'", "raised"),
        (
            "n1:4:5 [1] transport/p2p.cc:237 NCCL WARN Cuda failure 1 'invalid argument'",
            None,
        ),  # Of a peer's memory, say.
    ],
)
def test_a_device_error_that_the_watchdog_saw_ends_the_rank(text: str, kind: str | None) -> None:
    assert kinds(evidence(facts=tuple(read_text(text, "log", 1).facts))).get(1) == kind


def test_an_exception_about_a_lost_peer_without_a_rank_rules_nobody_out() -> None:
    lone = evidence(error(None, "RuntimeError", GLOO))
    endings = add_unnamed(lone, rank_endings(lone), [0, 1])
    assert {rank: end.kind for rank, end in endings.items()} == {UNNAMED: "lost_peer"}


def test_the_exit_code_beside_an_exception_about_a_lost_peer_is_nobodys_own_error() -> None:
    reset = error(None, "DistNetworkError", "Connection reset by peer")
    text = evidence(reset, error(3, "", "exit code 1", exit_code=1))
    endings = settle_exit_codes(add_unnamed(text, rank_endings(text), []), others=False)
    assert {rank: end.kind for rank, end in endings.items()} == {3: "lost_peer"}


def test_a_worker_of_ray_that_died_is_a_rank_without_a_name() -> None:
    died = evidence(facts=(LogFact("worker_died", None, "log", 7, "A worker died", {"detail": "End of file"}),))
    endings = add_unnamed(died, rank_endings(died), [])
    assert [(rank, end.kind, end.summary) for rank, end in endings.items()] == [(UNNAMED, "unknown", "End of file")]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("The actor is dead because its node has died. Node Id: 777d", "killed"),
        ("The actor died because its node has died.", "killed"),
        ("The actor died because of an error raised in its creation task, ray::W.__init__() (pid=3)", "raised"),
        ("The task's local raylet died. Check raylet.out for more information.", "unknown"),
    ],
)
def test_what_ray_says_of_an_actor(line: str, kind: str) -> None:
    text = evidence(
        facts=tuple(read_text(f"ray.exceptions.RayActorError: The actor died\n{line}\n", "log", None).facts)
    )
    (ending,) = add_unnamed(text, rank_endings(text), []).values()
    assert (ending.rank, ending.kind, line.startswith(str(ending.summary))) == (UNNAMED, kind, True)


def test_an_exception_says_more_than_ray_s_sentence_about_it() -> None:
    log = "The actor died because of an error raised in its creation task, ray::W.__init__()\n"
    facts = tuple(read_text(log, "log", None).facts)
    text = evidence(error(None, "KeyError", "'x'"), facts=facts)
    assert [end.type for end in add_unnamed(text, rank_endings(text), []).values()] == ["KeyError"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("DistBackendError: NCCL error in: a.cpp:1, remote process exited or there was a network error", "lost_peer"),
        ("DistBackendError: NCCL error in: a.cpp:1, invalid usage, NCCL version 2.21.5", None),
    ],
)
def test_a_line_of_nccl_without_its_exception_is_a_victims(text: str, kind: str | None) -> None:
    result = evidence(facts=(LogFact("dist_backend_error", 3, "log", 7, text, {}),))
    endings = add_unnamed(result, rank_endings(result), [])
    assert {rank: end.kind for rank, end in endings.items()} == ({3: kind} if kind else {})


@pytest.mark.parametrize(
    ("local_rank", "world_size", "who"),
    [(2, 4, {2}), (3, 4, set()), (1, 4, set()), (2, None, {2}), (3, None, {2}), (None, 4, {2}), (2, 16, {2})],
)
def test_an_exit_code_of_a_local_rank_that_no_candidate_has_is_of_a_rank_that_waited(
    local_rank: int | None, world_size: int | None, who: set[int]
) -> None:
    """Rank 2 of 4 ranks: local rank 0 on nodes with 1 or 2 ranks, else 2."""
    code = error(None, exit_code=7, local_rank=local_rank)
    assert {*add_unnamed(evidence(code, world_size=world_size), {}, [2])} == who
