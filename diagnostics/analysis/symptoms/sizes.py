"""A process that gloo ended because two sizes do not match: where its peers lost it, and whose size differs."""

from collections.abc import Sequence
from typing import Any

from diagnostics.analysis.symptoms.state import Waiting
from diagnostics.analysis.symptoms.waits import by_call, within
from diagnostics.analysis.vote import OF_JOB, count_votes
from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.model import CLAUSE, Evidence, LogFact, shortened

_OF_MODEL = patterns_beside(__file__)["of_model"]


def met_sizes(evidence: Evidence, lost: Sequence[Ending]) -> dict[str, Any]:
    """Return the fields about a process that gloo ended as two sizes do not match, and where its peers lost it."""
    facts = [fact for fact in evidence.facts if fact.kind == "gloo_mismatch"]
    if not facts:
        return {}
    places = within(lost)
    paths = [end.frames for end in lost if end.rank in places]
    of_model = bool(paths) and all(any(_OF_MODEL.search(f"{at.file} {at.function}") for at in path) for path in paths)
    calls = tuple(Waiting(ranks, op, site=site) for (op, site), ranks in by_call(places).items())
    sizes, minority = shortened(facts[0].text.strip(), CLAUSE), _minority_sizes(facts, evidence.world_size or 0)
    return {"sizes": sizes, "minority_sizes": minority, "peer_calls": calls, "of_model": of_model}


def _minority_sizes(facts: Sequence[LogFact], world: int) -> tuple[int, ...]:
    """Return the ranks whose own size is not that of most. A line also has the size of a peer, which may have none."""
    lines = {fact.rank: fact.fields for fact in facts if fact.rank is not None and "expected_bytes" in fact.fields}
    vote = count_votes(OF_JOB, 0, {rank: fields["expected_bytes"] for rank, fields in lines.items()}, range(world))
    if len({fields[name] for fields in lines.values() for name in ("expected_bytes", "received_bytes")}) != 2:
        return ()
    minority = vote.minority or (vote.silent if len(vote.silent) == 1 else ())
    return minority if len(vote.sides[0]) > max(1, len(minority)) else ()
