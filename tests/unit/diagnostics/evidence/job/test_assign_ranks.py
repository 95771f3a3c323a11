"""Whose a record is: local ranks made global, processes made ranks, the homeless adopted."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.assign_ranks import adopt, adopt_listed, adopt_single, assign_ranks, launched
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, Owner, RankError, Stacks, Thread
from diagnostics.evidence.reader import Contents


def evidence(**fields):
    return Evidence(Path("/job"), Limits(), **fields)


WHOLE = (Frame("train.py", 9, "<module>"),)
"""A traceback from the module on."""


def error(rank, file="train.log", line=1, type_="ValueError", **fields):
    return RankError(rank, file, line, type_, "bad batch", **fields)


def fact(rank, kind="gloo_closed", file="train.log", **fields):
    return LogFact(kind, rank, file, 1, "", fields)


def contents(*errors, facts=(), **fields):
    return Contents(errors[0].file if errors else "x.log", errors=list(errors), facts=list(facts), **fields)


def ranks(*read):
    job = evidence()
    assign_ranks(job, list(read))
    return [error.rank for error in job.errors]


def test_a_stated_rank_stays():
    assert ranks((contents(error(3)), Owner(5)), (contents(error(None)), Owner())) == [3, None]


def test_local_ranks_of_one_node_are_global():
    assert ranks((contents(error(-3)), Owner()), (contents(error(None)), Owner(None, 1, 0, "a"))) == [2, 1]


def test_local_ranks_of_two_nodes_are_not():
    read = [(contents(error(None)), Owner(None, 1, 0, node)) for node in ("a", "b")]
    assert ranks(*read) == [None, None]


def test_a_local_rank_beside_the_ranks_of_a_later_node_is_of_no_known_rank():
    assert ranks((contents(error(-4), facts=[fact(rank) for rank in range(8, 16)]), Owner())) == [None]
    assert ranks((contents(error(-4), facts=[fact(rank) for rank in (0, 1, 2, 4)]), Owner())) == [3]
    two = [(contents(error(-1), facts=[fact(0)]), Owner()), (contents(error(-4, file="b.log")), Owner())]
    assert ranks(*two) == [None, None]


@pytest.mark.parametrize("speak", [(0, 2), (0, 1, 2), (0, 1, 2, 4, 5, 7)])
def test_a_local_rank_is_none_where_the_ranks_beside_it_may_be_of_several_nodes(speak):
    assert ranks((contents(error(-4), facts=[fact(rank) for rank in speak]), Owner())) == [None]


def test_ranks_in_another_log_than_the_launchers_or_a_larger_world_show_no_single_node():
    speak = [fact(rank) for rank in (0, 1, 2, 4)]
    assert ranks((contents(facts=speak), Owner()), (contents(error(-4, file="b.log")), Owner())) == [None]
    assert ranks((contents(error(-4), facts=[*speak, fact(None, nranks=16)]), Owner())) == [None]


def launcher(tmp_path, *lines, ranks):
    """Diagnose a log in which these ranks speak, and the launcher's lines."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"[rank{rank}]: step 100 loss 2.0\n" for rank in ranks) + "".join(lines))
    return [(item.rank, item.local_rank) for item in gather(log, Limits()).errors]


def ended(agent, pid, local, code=-9):
    return (
        f"E1201 10:01:06.000000 {agent} torch/api.py:874] failed (exitcode: {code}) local_rank: {local} (pid: {pid})\n"
    )


def stopped(agent, *pids):
    return "".join(
        f"W1201 10:01:05.0 {agent} torch/api.py:900] Sending process {pid} closing signal SIGTERM\n" for pid in pids
    )


def test_a_local_rank_is_a_rank_where_the_launcher_started_as_many_processes_as_there_are_ranks(tmp_path):
    job = {"ranks": range(4)}
    assert launcher(tmp_path, stopped(40, 10, 12, 13), ended(40, 11, 1), **job) == [(1, None)]
    assert launcher(tmp_path, ended(40, 11, 1), **job) == [(None, 1)]
    assert launcher(tmp_path, stopped(40, 10), ended(40, 11, 1), **job) == [(None, 1)]


def test_a_second_launcher_or_more_nodes_leave_a_local_rank_one(tmp_path):
    gap = {"ranks": (0, 2, 3)}
    assert launcher(tmp_path, ended(40, 11, 1), **gap) == [(1, None)]
    assert launcher(tmp_path, stopped(30, 21, 22), ended(40, 11, 1), **gap) == [(None, 1)]
    assert launcher(tmp_path, "nnodes: 1\n", stopped(30, 21, 22), ended(40, 11, 1), **gap) == [(1, None)]
    for nodes in ("--nnodes=2", "--nnodes 1:4", "  max_nodes        : 2", "num_machines: 2"):
        assert launcher(tmp_path, f"{nodes}\n", ended(40, 11, 1), **gap) == [(None, 1)], nodes


@pytest.mark.parametrize(
    ("more", "rank"),
    [("", 7), (" --rdzv-backend=static", 7), (" --rdzv-backend=c10d", None), (" --rdzv_backend etcd", None)],
)
def test_a_command_line_places_its_node_where_the_rendezvous_is_static(tmp_path, more, rank):
    command = f"torchrun{more} --nnodes=2 --nproc-per-node=4 --node-rank=1 train.py\n"
    assert launcher(tmp_path, command, ended(40, 11, 3), ranks=range(8)) == [(rank, None if rank else 3)]
    other = command.replace("rank=1", "rank=0")
    assert launcher(tmp_path, command, other, ended(40, 11, 3), ranks=range(8)) == [(None, 3)]
    assert launcher(tmp_path, command, stopped(30, 5), ended(40, 11, 3), ranks=range(8)) == [(None, 3)]


def test_a_local_rank_alone_is_no_rank():
    """The first process of a later node is local rank 0 too."""
    job = evidence()
    assign_ranks(job, [(contents(error(-4)), Owner())])
    assert [(item.rank, item.local_rank) for item in job.errors] == [(None, 3)]
    assert ranks((contents(error(-4), facts=[fact(None, "one_node")]), Owner())) == [3]
    assert ranks((contents(error(-4), offset=8), Owner())) == [11]


def test_a_list_of_failures_says_where_a_node_begins():
    read = [(contents(error(None), offset=8), Owner(None, 1, 0, "a")), (contents(error(-1)), Owner(None, 0, 0, "b"))]
    assert ranks(*read) == [9, None]


def test_more_ranks_than_prefixes_mean_further_nodes():
    item = contents(error(-1), facts=[fact(None, nranks=16)], local=8)
    assert ranks((item, Owner())) == [None]
    whole = contents(error(-1), facts=[fact(None, nranks=8)], local=8)
    assert ranks((whole, Owner())) == [0]


def test_only_the_newest_attempt_of_a_node_counts():
    read = [(contents(error(0, file=f"{attempt}")), Owner(0, None, attempt, "a")) for attempt in (0, 2, 1)]
    job = evidence()
    assign_ranks(job, read)
    assert [item.file for item in job.errors] == ["2"]


def test_processes_of_the_largest_communicator_are_ranks():
    lines = [fact(None, process="host:7"), fact(None, process="host:8"), fact(None, process="host:9")]
    job = evidence()
    own = contents(error(0), facts=lines, processes={"host:7": (4, 3), "host:8": (2, 1)})
    assign_ranks(job, [(own, Owner()), (contents(error(0), processes={"host:8": (4, 2)}), Owner())])
    assert [item.rank for item in job.facts] == [3, 2, None]


def test_two_processes_of_one_rank_are_none():
    own = contents(error(0), facts=[fact(None, process="a:1")], processes={"a:1": (4, 3), "b:1": (4, 3)})
    job = evidence()
    assign_ranks(job, [(own, Owner())])
    assert job.facts[0].rank is None


def test_ranks_that_a_launcher_made_folders_for():
    owners = [Owner(None, rank, attempt, "a") for rank, attempt in ((0, 0), (1, 0), (0, 1), (3, 1))]
    assert launched(owners, []) == {0, 3}, "of the last attempt"
    assert launched(owners, [(contents(offset=8), Owner())]) == {8, 11}
    assert launched([*owners, Owner(None, 0, 0, "b")], []) == frozenset()
    assert launched([], []) == frozenset()
    assert launched(owners, [(contents(offset=8), Owner()), (contents(offset=0), Owner())]) == frozenset()


def listed(*more):
    table = LogFact("torchrun_list", None, "train.log", 90, "", {"ranks": [0, 1]})
    killed = error(1, line=91, type_="", signal="SIGTERM", exit_code=-15)
    return evidence(facts=[table], errors=[error(0, line=91, type_="", exit_code=1), killed, *more])


def test_the_one_exception_is_that_of_the_process_with_exit_code_1():
    job = listed(error(None, line=40))
    adopt_listed(job)
    assert [(item.rank, item.type, item.exit_code) for item in job.errors] == [(0, "ValueError", 1), (1, "", -15)]


@pytest.mark.parametrize(
    "more",
    [
        [error(None, line=40), error(None, line=50, type_="KeyError")],
        [error(None, line=95)],
        [error(None, file="other.log", line=40)],
        [error(None, line=40), error(1, line=30, type_="KeyError")],
    ],
)
def test_an_exception_that_may_be_of_another_stays_homeless(more):
    """A second one, one behind the list, one of another log, a rank that has its own."""
    job = listed(*more)
    adopt_listed(job)
    assert any(item.rank is None for item in job.errors)


def test_the_last_words_of_an_abort_are_those_of_the_rank_that_died_by_it():
    frames = (Frame("train.py", 3, "step"),)
    words = error(None, line=10, type_="", signal="SIGABRT", frames=frames)
    dump, foreign = Stacks(None, "train.log", (Thread("main", frames),)), Stacks(None, "b.log", ())
    job = evidence(
        errors=[error(2, file="list", type_="", signal="SIGABRT", exit_code=-6), words], stacks=[dump, foreign],
        facts=[fact(None, "gloo_mismatch"), fact(None, "gloo_mismatch", "b.log"), fact(None, "gloo_closed")],
    )  # fmt: skip
    adopt(job)
    assert [(item.rank, item.frames, item.exit_code) for item in job.errors] == [(2, frames, -6)]
    assert [stack.rank for stack in job.stacks] == [2, None]
    assert [item.rank for item in job.facts] == [2, None, None]


def test_two_ranks_that_died_by_one_signal_adopt_nothing():
    deaths = [error(rank, file="list", type_="", signal="SIGABRT") for rank in (1, 2)]
    job = evidence(errors=[*deaths, error(None, type_="", signal="SIGABRT")])
    adopt(job)
    assert [item.rank for item in job.errors] == [1, 2, None]


def test_a_log_of_a_single_process_is_that_of_rank_0():
    job = evidence(errors=[error(None, frames=WHOLE)], facts=[fact(None)])
    adopt_single(job)
    assert [item.rank for item in (*job.errors, *job.facts)] == [0, 0]


@pytest.mark.parametrize(
    "frames",
    [
        (),  # The last line alone.
        (Frame("train.py", 3, "step"),),  # Cut off above its function.
        (Frame("/lib/site-packages/torch/distributed/fsdp/_flat_param.py", 9, "_validate"), *WHOLE),
        (Frame("C:\\lib\\deepspeed\\runtime\\engine.py", 9, "step"), *WHOLE),
    ],
)
def test_what_was_cut_out_of_a_log_or_has_peers_may_be_of_any_rank(frames):
    job = evidence(errors=[error(None, frames=frames)], facts=[fact(None)])
    adopt_single(job)
    assert [item.rank for item in (*job.errors, *job.facts)] == [None, None]


@pytest.mark.parametrize(
    "more",
    [
        {"world_size": 2},
        {"facts": [fact(1)]},
        {"facts": [fact(None, file="b.log")]},
        {"stacks": [Stacks(3, "s", ())]},
        {"errors": [error(None, type_="", signal="SIGKILL")]},
    ],
)
def test_a_second_process_or_no_exception_leaves_it_homeless(more):
    job = evidence(**{"errors": [error(None)], "facts": [fact(None)], **more})
    adopt_single(job)
    assert all(item.rank != 0 for item in job.errors)


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        ("", 0),
        ("python -m torch.distributed.launch --nproc_per_node=1 train.py\n", 0),
        ("python -m torch.distributed.launch --nproc_per_node=2 train.py\n", None),
        ("Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n", None),
        ("accelerate launch --num_processes 8 train.py\n", None),
    ],
)
def test_an_exception_without_a_prefix_is_of_rank_0_only_where_one_process_ran(
    tmp_path: Path, before: str, rank: int | None
) -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n    f()\nValueError: no\n'
    (tmp_path / "job.log").write_text(before + trace)
    (error,) = gather(tmp_path, Limits()).errors
    assert error.rank == rank


@pytest.mark.parametrize(
    ("after", "ranks"),
    [
        ("srun: error: n1: task 0: Exited with exit code 1\n", (0,)),
        ("srun: error: n1: task 2: Exited with exit code 1\n", (2,)),
        ("srun: error: n1: task 2: Exited with exit code 1\nsrun: error: n1: tasks 0-1,3: Terminated\n", (2,)),
        ("[INFO] [launch.py:316:sigkill_handler] Killing subprocess 7\n[ERROR] [launch.py:322:sigkill_handler] "
         "['python', 'train.py', '--local_rank=1'] exits with return code = 1\n", ()),
        ("E0901 10:10:12.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
         "local_rank: 3 (pid: 104) of binary: /usr/bin/python\n", ()),
    ],
)  # fmt: skip
def test_an_exception_beside_a_launchers_line_about_another_process_is_not_of_rank_0(
    tmp_path: Path, after: str, ranks: tuple[int, ...]
) -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n    f()\nValueError: no\n'
    (tmp_path / "job.log").write_text(trace + after)
    (cause,) = diagnose(tmp_path).root_causes
    assert (cause.cause, cause.ranks) == ("hang.rank_raised", ranks)
