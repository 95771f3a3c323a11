"""How many ranks the job had, and files that contradict each other."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence.job.assign_ranks import ALL_RANKS, Claims, settle_world_size, take_environment
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import MOST_RANKS, Evidence, LogFact, RunEvidence


def fact(kind, rank=None, file="train.log", **fields):
    return LogFact(kind, rank, file, 1, "", fields)


def run(**manifest):
    return RunEvidence(Path("/job"), None, {}, manifest, {}, {}, {}, {})


def settled(*facts, claims=None, **fields):
    evidence = Evidence(Path("/job"), Limits(), facts=list(facts), **fields)
    settle_world_size(evidence, claims or Claims())
    return evidence


def claims(*stated, of_rank=()):
    result = Claims()
    for size, file in stated:
        result.add(size, file)
    for size, file in of_rank:
        result.add_of_rank(size, file)
    return result


def test_what_all_files_state():
    evidence = settled(
        fact("world_size", nranks=4), fact("start", nranks=4), claims=claims((4, "a"), of_rank=[(4, "b")])
    )
    assert evidence.world_size == 4
    assert not evidence.problems


def test_nobody_says():
    assert settled().world_size is None
    assert settled(fact("world_size", nranks="many"), fact("other", nranks=3)).world_size is None


def test_a_communicator_counts_where_nothing_else_does():
    """It may be of a sub-group, so the largest one is taken, and a stated size goes before."""
    inits = [fact("nccl_init", nranks=2), fact("nccl_init", nranks=8)]
    assert settled(*inits).world_size == 8
    assert settled(*inits, claims=claims((16, "a"))).world_size == 16
    assert settled(fact("nccl_init", nranks=MOST_RANKS + 1)).world_size is None


@pytest.mark.parametrize("size", [0, -1, MOST_RANKS + 1])
def test_numbers_that_are_no_number_of_ranks(size):
    assert settled(claims=claims((size, "a"))).world_size is None


def test_a_contradiction_is_a_problem_and_leaves_it_unknown():
    evidence = settled(claims=claims((4, "b.log"), (4, "a.log"), (8, "c.log")))
    assert evidence.world_size is None
    (problem,) = evidence.problems
    assert problem.what == "files of different jobs are mixed: 4 ranks (a.log and 1 more) and 8 ranks (c.log)"


def test_dumps_of_ranks_of_jobs_of_different_sizes_are_refused():
    with pytest.raises(DiagnosticsError, match=r"files of 2 jobs: 4 ranks \(a\) and 8 ranks \(b\)"):
        settled(claims=claims(of_rank=[(4, "a"), (8, "b")]))


def test_the_manifest_of_a_run_decides():
    own = run(topology={"world_size": 2})
    evidence = settled(run=own, claims=claims((3, "a"), of_rank=[(4, "b")]))
    assert evidence.world_size == 2
    assert len(evidence.problems) == 1
    for damaged in ({}, {"topology": 3}, {"topology": {"world_size": "x"}}, {"topology": {"world_size": 0}}):
        assert settled(run=run(**damaged)).world_size is None


def test_ranks_that_such_a_job_cannot_have():
    files = {
        "flight": [SimpleNamespace(rank=n, file=f"rank_{n}") for n in (0, 3, 4)]
        + [SimpleNamespace(rank=None, file="x")]
    }
    evidence = settled(claims=claims((4, "a")), files=files)
    assert [(problem.file, problem.what) for problem in evidence.problems] == [
        ("rank_4", "rank 4 in a job of 4 ranks: from another job, or the name is misleading")
    ]


def test_variables_of_the_job_and_of_ranks():
    recorded = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4, "PATH": "/bin", "NCCL_lower": "x"}
    evidence = settled(
        fact("nccl_env", 1, name="NCCL_IB_DISABLE", value=1), fact("variable", name="GLOO_SOCKET_IFNAME", value="eth0"),
        fact("variable", name=7), fact("world_size", nranks=2),
        run=run(environment=recorded),
    )  # fmt: skip
    take_environment(evidence)
    assert evidence.environment == {
        ALL_RANKS: {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "eth0"},
        1: {"NCCL_IB_DISABLE": "1"},
    }


def test_a_manifest_without_variables_adds_none():
    evidence = settled(run=run(environment=["NCCL_DEBUG"]))
    take_environment(evidence)
    assert evidence.environment == {}
