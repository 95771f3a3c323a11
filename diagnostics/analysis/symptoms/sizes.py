"""A process that gloo ended because two sizes do not match: where its peers lost it, and whose size differs."""

from collections.abc import Sequence
from typing import Any

from diagnostics.analysis.stall.job_state import SIZES
from diagnostics.analysis.stall.size_mismatch import minority_sizes
from diagnostics.analysis.symptoms.state import Waiting
from diagnostics.analysis.symptoms.waits import by_call, within
from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.endings import Ending, of_error
from diagnostics.evidence.model import CLAUSE, Evidence, shortened

_OF_MODEL = patterns_beside(__file__)["of_model"]


def met_sizes(evidence: Evidence, lost: Sequence[Ending]) -> dict[str, Any]:
    """Return the fields about a process that gloo ended as two sizes do not match, and where its peers lost it."""
    facts = [fact for fact in evidence.facts if fact.kind == SIZES]
    if not facts:
        return {}
    places, met = within(lost), {fact.rank for fact in facts}
    own = within([of_error(e, e.rank) for e in evidence.errors if e.rank is not None and e.rank in met])
    paths = [end.frames for end in lost if end.rank in places]
    of_model = bool(paths) and all(any(_OF_MODEL.search(f"{at.file} {at.function}") for at in path) for path in paths)
    return {
        "sizes": shortened(facts[0].text.strip(), CLAUSE),
        "minority_sizes": minority_sizes(facts, evidence.world_size or 0),
        "peer_calls": tuple(Waiting(ranks, op, site=site) for (op, site), ranks in by_call(places).items()),
        "of_model": of_model,
        "statements": len({*places.values(), *own.values()}) if own and places else 0,
    }
