"""The environment of a job: its variables, the linter's findings for each rank, and what libraries logged about it."""

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct, field

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.recorded import ALL, Recorded, recorded
from diagnostics.analysis.environment.situation import Lint, lint_of
from diagnostics.analysis.step_times import Silence, silence
from diagnostics.analysis.vote import OF_JOB, count_votes
from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.model import Evidence, LogFact, RankError

_SHOWN = 3  # Maximum number of different values of one variable to show.
_PER_RANK = patterns_beside(__file__)["per_rank"]


class RankLint(Struct, frozen=True):
    """A lint, and the ranks that have it."""

    lint: Lint
    ranks: tuple[int, ...]
    """Ascending; empty = all."""


class JobEnvironment(Struct):
    """The facts from which the causes in the environment are decided."""

    recorded: Recorded
    lints: list[RankLint]
    log: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    has_messages: bool = False
    """Whether a library's message would be in the evidence: it has log lines, exceptions or a dtk run."""
    silence: Silence | None = None
    """The time without a step before something stopped the job."""
    lost: bool = False
    """Whether the status of a dtk run is "running" while its launcher's process no longer exists."""


def job_environment(evidence: Evidence) -> JobEnvironment:
    """Merge the records of the environment and lint every rank's variables."""
    record = recorded(evidence)
    lints = [*_linted(record), *_differences(record)]
    run = evidence.run
    return JobEnvironment(
        *(record, lints, evidence.facts, evidence.errors),
        has_messages=bool(evidence.facts or evidence.errors or run is not None),
        silence=silence(evidence),
        lost=run is not None and run.lost,
    )


def _linted(record: Recorded) -> Iterator[RankLint]:
    """Lint each distinct set of variables once, however many ranks have it."""
    by_variables: dict[frozenset[tuple[str, str]], list[int]] = defaultdict(list)
    for rank, variables in record.variables.items():
        by_variables[frozenset(variables.items())].append(rank)
    ranks_of: dict[Lint, set[int]] = defaultdict(set)
    for items, ranks in by_variables.items():
        if not (items or record.hardware):
            continue  # There is nothing to check, and loading the catalogue takes time.
        for flaw in lint(dict(sorted(items)), record.nccl_version, record.nnodes, record.hardware):
            ranks_of[flaw].update(ranks)
    for flaw, having in ranks_of.items():
        yield RankLint(flaw, () if ALL in having else tuple(sorted(having)))


def _differences(record: Recorded) -> Iterator[RankLint]:
    """Yield variables that differ between ranks and must not, with the ranks of the minority, or all ranks at a tie."""
    values: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, variables in sorted(record.variables.items()):
        for name, value in variables.items():
            if rank != ALL and not _PER_RANK.search(name) and catalogue().find(name) is not None:
                values[name][rank] = value
    for name, of_rank in sorted(values.items()):
        vote = count_votes(OF_JOB, 0, of_rank)
        if vote.minority:
            shown = tuple((of_rank[side[0]], side) for side in vote.sides[:_SHOWN])
            yield RankLint(lint_of("error", name, "ranks_disagree", values=shown), vote.minority)
