"""Work on few ranks takes longer than the timeout of the collective in which the other ranks wait."""

import re

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.analysis.symptoms.waits import left_waiting
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import LIKELY, PLAUSIBLE, POSSIBLE, Finding, confirmed
from diagnostics.evidence.logs.patterns import moment
from diagnostics.evidence.readers.log import WAITED

_TEXTS, _LOADS = Texts(__file__), table_beside(__file__)["loads"]
_SHARE = 0.8
"""Minimum share of the timeout that the work had taken, as the others may start to wait after the work began."""
_LONGER = 1.5
"""Maximum part of it that work had taken which was over before the launcher ended the job."""
_DEFAULT_MS = 1_800_000
"""Default timeout of a group, also with NCCL up to torch 2.1, whose message has no figure (`Socket Timeout`)."""


def decide(stall: Stall) -> Finding:
    """Decide from a progress bar, or a stated duration, of such work when the first timeout was reported."""
    facts = stall.job.evidence.facts
    work, *more = [*(fact for fact in facts if fact.kind == "host_progress"), None]
    at_barrier = left_waiting(stall.job.evidence)
    ended = any(end.by_itself for end in stall.job.endings.values())  # Then its peers wait for nobody.
    timeouts = at_barrier * (not ended) + [fact for fact in facts if fact.kind in WAITED - {"reached_barrier"}]
    limits_ms = [value for fact in timeouts if isinstance(value := fact.fields.get("timeout_ms"), int)]
    parts = str(work.fields["elapsed"]).split(":") if work else []  # Such as 1:02:03.
    took_s = sum(60.0**power * float(part or 0) for power, part in enumerate(reversed(parts)))
    took_s *= 60 if work and "minutes" in work.fields else 1
    timeout_s = min(limits_ms, default=_DEFAULT_MS if timeouts else float("inf")) / 1000
    is_stated = work is not None and "done" not in work.fields
    is_over = work is not None and not is_stated and work.fields["done"] == work.fields["total"]
    # The others waited for work that is over only if they did not do it too, and no step came after it.
    is_other = is_over and (took_s < timeout_s or len(more) > 1 or any(fact.kind == "steps" for fact in facts))
    # A launcher ends the job soon after the timeout, so that no longer work is reported to be over.
    is_other |= is_stated and not timeout_s <= took_s <= _LONGER * timeout_s
    at_s = moment(work.text, 0.0) if work else None
    ends = (moment(fact.text, at_s) for fact in timeouts if at_s)
    is_other |= any(end and at_s and end - at_s > (1 - _SHARE) * timeout_s for end in ends)  # It was over long before.
    if work is None or stall.job.finished() or took_s < _SHARE * timeout_s or is_other:
        return _parts.unconfirmed(stall)
    state = symptoms(stall.job.evidence)
    waiting = {rank for wait in (state.waits if state else ()) for rank in wait.ranks}
    waiting |= {fact.rank for fact in timeouts if fact.rank is not None}
    others = tuple(rank for rank in range(stall.job.world()) if rank not in waiting) if waiting else ()
    # Each rank loads its weights, whereas rank 0 does the work that is done once for all ranks.
    loads = re.search(_LOADS, str(work.fields["what"])) is not None
    alone = others if len(others) == 1 else (0,) if 0 in others and not loads else ()
    ranks = (work.rank,) if work.rank is not None else alone
    doing = {fact.rank for fact in facts if fact.kind == "host_progress"}
    # Else all ranks may do it, and one of them hangs in it.
    if "any" in work.fields and (not ranks or waiting & (doing | {*ranks})):
        return _parts.unconfirmed(stall)
    victims = tuple(sorted(waiting - set(ranks)))
    group = next((desc for fact in timeouts if (desc := fact.fields.get("desc")) not in (None, "", "default_pg")), "")
    budget, case = "budget_of_group" if group else "budget", "default" if len(timeouts) > len(at_barrier) else "barrier"
    case = "stated" if is_stated else case
    kind = "loads" if loads else "prepares" if "any" not in work.fields else "alone"
    text = _TEXTS.facts(
        [case, kind, budget], group=group,
        what=str(work.fields["what"]).strip() or _TEXTS.phrase("progress_bar"),
        on=_TEXTS.phrase("on", ranks=ranks) if ranks else "", waits=victims or _TEXTS.phrase("others"),
        done=work.fields.get("done", 0), total=work.fields.get("total", 0),
        took=round(took_s), timeout=round(timeout_s), took_s=took_s, timeout_s=timeout_s,
    )  # fmt: skip
    return confirmed(
        facts=text,
        # Rank 0 may have ended instead, or all ranks did it.
        confidence=POSSIBLE if case != "default" else PLAUSIBLE if "any" in work.fields else LIKELY,
        ranks=ranks,
        victims=victims,
        evidence=_parts.lines((work, *timeouts[:2])),
    )


CAUSE = declared(__file__, explain, decide)
