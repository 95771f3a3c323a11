"""What a report says of the evidence beside the causes: coverage by kind and rank with problems, and notes."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.causes.registry import by_id
from diagnostics.contract.findings import Finding, FormattedFacts, Outcome, text_of
from diagnostics.contract.formatting import file_name, ranks_text
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.job.registry import absent_without, records
from diagnostics.evidence.model import Evidence, LogFact, RankError, shortened
from diagnostics.evidence.readers.log import ENDED
from diagnostics.report.model import Coverage
from diagnostics.report.without_cause import account_text, recorded_failure, remarks_on
from diagnostics.report.wording import texts_beside
from diagnostics.tree.outcome import TROUBLE, account_of, in_trouble, is_unheard

_said = texts_beside(__file__)
_SHOWN = 4  # Maximum number of notes on trouble, and on exceptions without a rank.
_QUOTED = 60  # Characters of a message by which its exception is found in quoted evidence.
PROBLEMS = 200  # Problems and notes of the coverage listed per kind; the rest are counted.
_RANKS = 2  # Maximum number of ranks' exceptions among them, to leave room for other kinds.


def notes(
    evidence: Evidence,
    outcome: Outcome,
    roots: Sequence[Finding],
    findings: Sequence[Finding],
    measures: dict[str, object],
    covered: frozenset[str],
    is_quoted: bool = False,
) -> tuple[str, ...]:
    """Return the notes, each once.

    Lines of the kinds in `covered` are described elsewhere in the report, and the launcher's reason if it `is_quoted`.
    """
    texts = [str(evidence.doubt)] if evidence.doubt else []
    for ended in (fact for fact in evidence.facts if fact.kind == ENDED):
        lines = [error.line for error in evidence.errors if error.file == ended.file and error.line]
        if min(lines, default=0) > ended.line:
            texts.append(_said("ended", at=f"{ended.file}:{ended.line}"))
    cited = [item for root in roots for item in root.evidence]
    places = {f"{item.file}:{item.line}" for item in cited}
    if not roots:
        texts += _trouble(evidence, covered)
        places |= {f"{fact.file}:{fact.line}" for fact in evidence.facts if fact.kind in TROUBLE - covered}
    texts += [*_attempts(evidence), *_survived(evidence)]
    texts += _without_rank(evidence, places, "\n".join(str(item.detail) for item in cited))
    few = [fact for fact in evidence.facts if fact.kind == "few_cpus"] if outcome == "slow" or not roots else []
    texts += [_said("few_cpus", at=f"{fact.file}:{fact.line}", **fact.fields) for fact in few[:1]]
    remarks = [remarks_on(printed_steps(evidence))] if outcome == "healthy" else []
    texts += [*_of_the_run(evidence), *filter(None, remarks)]
    quoted = {error.rank for error in _quoted_errors(evidence)}
    if not (roots or is_quoted) and (failure := recorded_failure(evidence.run, quoted)):
        texts.append(f"The launcher recorded: {failure}")
    if not roots:  # Known bugs of the job's versions, which print no message of their own.
        undecided = (f for f in findings if f.status == "undecided" and isinstance(f.facts, FormattedFacts))
        noted = (text_of(f) for f in undecided if f.cause in by_id() and by_id()[f.cause].noted)
        texts += [f"{text.summary} {text.missing}" for text in noted if text.measured]  # Else no version is named.
    account, is_headline = account_of(measures), not (in_trouble(evidence) or any(f.suspected for f in findings))
    if account is not None and (
        account.unaccounted if outcome == "slow" else outcome == "undecided" and not is_headline
    ):
        texts.append(_said("account", account=account_text(account)))
    return tuple(dict.fromkeys(texts))


def _trouble(evidence: Evidence, covered: frozenset[str]) -> Iterator[str]:
    """Yield, at most `_SHOWN`, the first exceptions of ranks and the first line of each kind of trouble."""
    errors = _quoted_errors(evidence)
    places = {_at(error) for error in errors}
    for error in errors:
        own = own_line(error.frames)
        at = f" ({file_name(own.file)}:{own.line})" if own else ""
        text = f"{error.type} {error.message}".strip() or error.signal or f"exit code {error.exit_code}"
        yield f"{_at(error)}: rank {error.rank}: {shortened(text)}{at}"
    lines: dict[str, LogFact] = {}
    for fact in evidence.facts:
        if fact.kind in TROUBLE - covered and f"{fact.file}:{fact.line}" not in places:
            lines.setdefault(fact.kind, fact)
    for fact in [*lines.values()][: _SHOWN - len(errors)]:
        yield f"{fact.file}:{fact.line}: {shortened(fact.text or _of_record(fact), 200)}"


def _quoted_errors(evidence: Evidence) -> list[RankError]:
    return [error for error in evidence.errors if error.rank is not None][:_RANKS]


def _of_record(fact: LogFact) -> str:
    """Return what a record says that is no line of a log."""
    fields = fact.fields
    sides = [_said("ras_side" if side["ranks"] else "ras_count", **side) for side in fields.get("sides", ())]
    of = _said("ras_of", **fields) if fields.get("communicator") else ""
    return _said(fields.get("row", fact.kind), **fields | {"sides": sides, "of": of})


def _attempts(evidence: Evidence) -> Iterator[str]:
    for attempt in evidence.earlier:
        parts, error = [], attempt.error
        if error is not None:
            who = "" if error.rank is None else f"rank {error.rank}: "
            who = f"local rank {-1 - error.rank} of a node: " if error.rank is not None and error.rank < 0 else who
            text = f"{error.type}: {error.message}" if error.type else error.signal or f"exit code {error.exit_code}"
            parts.append(f"{who}{shortened(' '.join(text.split()))} ({_at(error)})")
        if attempt.silent:
            silent = _said("no_error_file", ranks=attempt.silent)
            lost = error is not None and is_victim(kind_of_exception(error.type, error.message, error.frames))
            parts.insert(0 if lost else 1, silent)  # A rank that lost its connection comes after the one that ended.
        row = "attempt" if parts else "silent_attempt"
        yield _said(row, number=attempt.attempt, parts=parts)


def _without_rank(evidence: Evidence, shown: set[str], quoted: str) -> Iterator[str]:
    """Yield exceptions without a rank, unless they are quoted as evidence of a cause."""
    unassigned = [error for error in evidence.errors if error.rank is None and error.type and _at(error) not in shown]
    for error in [error for error in unassigned if (error.message or error.type)[:_QUOTED] not in quoted][:_SHOWN]:
        at = f" ({error.frames[0].file}:{error.frames[0].line})" if error.frames else ""
        text = shortened(" ".join(f"{error.type}: {error.message}".split()))
        yield f"{error.file}:{error.line} is an exception of an unidentified rank: {text}{at}"


def _survived(evidence: Evidence) -> Iterator[str]:
    """Yield the last exception, and the last other line of trouble, after which the job went on."""
    lines = [line for fact in evidence.facts if fact.kind == "steps" for line in fact.fields.get("survived", ())]
    yield from [f"{problem.file}: {problem.what}" for problem in evidence.problems if problem.about == "ended"][-1:]
    handled = [f for f in evidence.facts if f.kind == "handled_error" and f.fields["frames"]]  # Or it was only printed.
    for fact in (*handled[-1:], *lines[-1:]):
        who = "" if fact.rank is None else f"rank {fact.rank}: "
        row = "buffered" if fact.fields.get("buffered") else "survived"
        yield _said(row, at=f"{fact.file}:{fact.line}", what=f"{who}{fact.text}")


def _of_the_run(evidence: Evidence) -> Iterator[str]:
    """Yield whether the record of a dtk run shows it running, lost, or not at all."""
    run = evidence.run
    if run is None:
        return
    status = run.status
    if run.lost or status is None:
        yield _said("lost" if run.lost else "no_status")
    elif status.state == "running" and not is_unheard(evidence):
        yield _said("running")


def _at(error: RankError) -> str:
    return f"{error.file}:{error.line}" if error.line else error.file


def coverage(evidence: Evidence, world_size: int) -> tuple[Coverage, ...]:
    """Return one line per kind of evidence that was found or had a problem."""
    by_kind: dict[str, Collection[Any]] = {**records(evidence)}
    unread = {problem.file for problem in evidence.problems if problem.unread}
    ranks = {
        kind: evidence.inside.get(kind)
        or {record.rank for record in kept if record.rank is not None and record.file not in unread}
        for kind, kept in by_kind.items()
    }
    by_kind["heartbeat"] = ranks["heartbeat"] = set(evidence.run.heartbeats) if evidence.run else set()
    problems: dict[str, list[str]] = {kind: [] for kind in ranks}
    notes: dict[str, list[str]] = {}
    for problem in sorted(evidence.problems, key=lambda problem: (problem.file, problem.what)):
        text = f"{problem.file}: {problem.what}" if problem.file else problem.what
        problems.setdefault(problem.kind, [])
        (notes.setdefault(problem.kind, []) if problem.harmless else problems[problem.kind]).append(text)
    kinds = [kind for kind in problems if by_kind.get(kind) or problems[kind] or kind in notes]
    return tuple(_line(kind, ranks.get(kind, set()), problems[kind], notes.get(kind, []), world_size) for kind in kinds)


def _line(kind: str, present: set[int], problems: list[str], notes: list[str], world_size: int) -> Coverage:
    expected = len(present)
    lines, text = list(problems), ""
    if (what := absent_without(kind)) and present:
        expected = max(world_size, len(present))
        absent = sorted(set(range(world_size)) - present)
        if absent:
            text = f"{ranks_text(absent)}: no {what}"
            lines.insert(0, text)
    return Coverage(kind, len(present), expected, _cut(lines), _cut(notes), text)


def _cut(lines: list[str]) -> tuple[str, ...]:
    return tuple(lines) if len(lines) <= PROBLEMS else (*lines[:PROBLEMS], f"and {len(lines) - PROBLEMS} more")
