"""Two logs of one process, of its standard error and its standard output: what one shows of errors in the other."""

import re
from collections import defaultdict
from math import inf

from diagnostics.evidence.logs.streams import GOES_ON, PEERS_GO_ON, fact_of
from diagnostics.evidence.model import LogFact, RankError
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers.log import ENDED, FAILURES

# What tells the two apart in names: `job.err`, `stderr.log`, `rank0_error.txt`; PBS: `job.e123`.
_STREAM = re.compile(
    r"(?i)(?<![a-z])(?:std)?(?:(?P<error>err(?:or)?)|out(?:put)?)(?![a-z])|(?<=\.)(?:(?P<of_pbs>e)|o)(?=\d+$)"
)


def take_back(read: list[Contents]) -> None:
    """Turn exceptions in standard error, of which standard output shows that the process survived them, into facts.

    Its steps are dated later, or it tells the end of the training while a handler printed the exception.
    """
    pairs: defaultdict[str, dict[bool, list[Contents]]] = defaultdict(lambda: {True: [], False: []})
    for contents in read:
        folder, slash, name = contents.file.rpartition("/")
        if match := _STREAM.search(name):
            key = f"{folder}{slash}{name[: match.start()]}*{name[match.end() :]}"
            pairs[key][bool(match["error"] or match["of_pbs"])].append(contents)
    failed = any(not error.type for contents in read for error in contents.errors) or any(
        fact.kind in FAILURES for contents in read for fact in contents.facts
    )
    for pair in pairs.values():
        for errors, output in zip(pair[True], pair[False], strict=False):
            ended = not failed and any(fact.kind == ENDED for fact in output.facts)
            least = PEERS_GO_ON if failed or errors.speak else GOES_ON
            handled = [
                error
                for error in errors.errors
                if error.type and error.caught and (ended or _further(output.facts, error) >= least)
            ]
            lines = {error.line for error in handled}
            errors.errors = [error for error in errors.errors if error not in handled]
            errors.facts = [fact for fact in errors.facts if fact.line not in lines]  # Memory that ran out.
            errors.facts += [fact_of("handled_error", e.rank, e.file, e.line, e) for e in handled]


def _further(facts: list[LogFact], error: RankError) -> int:
    """Return how many steps are dated later than an exception; none if steps before it are not dated too."""
    steps = next((fact.fields["steps"] for fact in facts if fact.kind == "steps"), None)
    if steps is None or error.before_s is None:
        return 0
    rows = [row for each in steps.series.values() for row in zip(each.lines, each.at_s, strict=True)]
    later = min((line for line, at_s in rows if at_s > error.before_s), default=inf)
    return int(steps.further(later - 1)) if any(at_s <= error.before_s for _, at_s in rows) else 0
