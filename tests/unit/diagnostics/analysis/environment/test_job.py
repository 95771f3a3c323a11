"""The environment of a job: each rank's lints, and variables that have to be alike on all ranks."""

from pathlib import Path

from diagnostics.analysis.environment.job import JobEnvironment, RankLint, job_environment
from diagnostics.causes.lint_texts import lint_text
from diagnostics.evidence.job.assign_ranks import ALL_RANKS
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.analysis.calls import fact


def environment(ranks: dict[int, dict[str, str]], **more: object) -> JobEnvironment:
    return job_environment(Evidence(Path(), Limits(), environment=ranks, **more))  # type: ignore[arg-type]


def lints(job: JobEnvironment) -> list[tuple[str, str, tuple[int, ...]]]:
    return sorted((lint.lint.variable, lint_text(lint.lint).cause, lint.ranks) for lint in job.lints)


def disagreeing(job: JobEnvironment) -> list[RankLint]:
    return [lint for lint in job.lints if lint.lint.rule == "ranks_disagree"]


def test_a_lint_of_all_ranks_names_none_and_one_of_some_names_them() -> None:
    assert lints(environment({ALL_RANKS: {"NCCL_BUFFSIZE": "4M"}})) == [("NCCL_BUFFSIZE", "env.silent_zero", ())]
    ranks = {0: {"NCCL_DEBUG": "TRACE"}, 1: {"NCCL_DEBUG": "TRACE"}, 2: {}}
    assert lints(environment(ranks)) == [("NCCL_DEBUG", "env.debug_left_on", (0, 1))]


def test_the_ranks_with_another_value_than_most_are_named() -> None:
    ranks = {rank: {"NCCL_ALGO": "Tree" if rank == 2 else "Ring"} for rank in range(4)}
    (rank_lint,) = disagreeing(environment(ranks))
    assert rank_lint.ranks == (2,)
    assert lint_text(rank_lint.lint).message == "ranks disagree: 'Ring' on ranks 0, 1 and 3; 'Tree' on rank 2"


def test_at_a_tie_all_are_named() -> None:
    ranks = {rank: {"NCCL_ALGO": "Tree" if rank > 1 else "Ring"} for rank in range(4)}
    (rank_lint,) = disagreeing(environment(ranks))
    assert rank_lint.ranks == (0, 1, 2, 3)


def test_variables_that_may_well_differ_are_left_alone() -> None:
    for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG_FILE", "NCCL_IB_GID_INDEX"):
        ranks = {rank: {name: f"/a/{rank}" if "FILE" in name else str(rank)} for rank in range(4)}
        assert not disagreeing(environment(ranks))


def test_names_that_nothing_reads_are_not_compared() -> None:
    assert not disagreeing(environment({rank: {"MY_NCCL": str(rank)} for rank in range(3)}))


def test_whether_a_library_could_have_said_what_it_refuses() -> None:
    assert not environment({}).has_messages
    assert environment({}, facts=[fact("nccl_init", 0)]).has_messages
