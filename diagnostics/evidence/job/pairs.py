"""Two logs of one process, of its standard error and its standard output: what one shows of errors in the other."""

import re
from math import inf

from diagnostics.evidence.logs.streams import GOES_ON, PEERS_GO_ON, fact_of
from diagnostics.evidence.model import LogFact, RankError
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers.log import ENDED, FAILURES

# What tells the two apart in names: `job.err`, `stderr.log`, `rank0_error.txt`; PBS: `job.e123`.
_NAME = re.compile(r"(?i)(.*(?<![a-z]))(?:std)?(?:(e(?:rr(?:or)?)?)|o(?:ut(?:put)?)?)(?![a-z])([^/]*)$")


def take_back(read: list[Contents]) -> None:
    """Turn exceptions in standard error, of which standard output shows that the process survived them, into facts.

    Its steps are dated later, or it tells the end of the training while a handler printed the exception.
    """
    named = {(name[1], name[3], bool(name[2])): log for log in read if (name := _NAME.match(log.file))}
    failed = any(not e.type for log in read for e in log.errors) or any(
        f.kind in FAILURES for o in read for f in o.facts
    )
    for (head, tail, is_error), log in named.items():
        if is_error and (output := named.get((head, tail, False))):
            ended = not failed and any(fact.kind == ENDED for fact in output.facts)
            least = 0 if ended else PEERS_GO_ON if failed or log.speak else GOES_ON
            handled = [e for e in log.errors if e.type and e.caught and _further(output.facts, e) >= least]
            lines = {error.line for error in handled}
            log.errors = [error for error in log.errors if error not in handled]
            log.facts = [fact for fact in log.facts if fact.line not in lines]  # Memory that ran out.
            log.facts += [fact_of("handled_error", e.rank, e.file, e.line, e) for e in handled]


def _further(facts: list[LogFact], error: RankError) -> int:
    """Return how many steps are dated later than an exception; none if steps before it are not dated too."""
    steps = [fact.fields["steps"] for fact in facts if fact.kind == "steps"]
    rows = [row for own in steps for each in own.series.values() for row in zip(each.lines, each.at_s, strict=True)]
    at_s = error.before_s or inf
    later = min((line for line, dated_s in rows if dated_s > at_s), default=inf)
    return int(steps[0].further(later - 1)) if any(dated_s <= at_s for _, dated_s in rows) else 0
