"""Puts findings into words and numbers that all causes share: cost, share of the step, remedies, where.

Decides nothing itself.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from diagnostics.analysis.step_profile.overview import SHARE, Overview
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Group, Remedy, Where
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile

NO_TRACE = "`record=full` (a dtk run), or `torch.profiler.profile` with `record_shapes=True` on every rank"
_RANKS_READ = 2
"""Ranks whose records of calls are searched for the line that issued a collective."""


def of_step(view: Overview, cost_ms: float) -> str:
    """`41 ms of 180 ms a step`"""
    return f"{figure(cost_ms)} ms of {figure(view.step_ms)} ms a {view.unit}"


def figure(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def megabytes(size_bytes: float) -> str:
    """`3.3 MiB`, `512 KiB`"""
    return f"{size_bytes / (1 << 20):.1f} MiB" if size_bytes >= 1 << 20 else f"{size_bytes / 1024:.1f} KiB"


def confirmed(
    view: Overview,
    cause: str,
    summary: str,
    cost_ms: float,
    *,
    details: Iterable[str],
    remedies: Sequence[Remedy],
    ranks: tuple[int, ...] | None = None,
    victims: tuple[int, ...] = (),
    confidence: float = 0.9,
    group: Group | None = None,
    where: tuple[Where, ...] = (),
    of_transfer: bool = True,
) -> Finding:
    """A cause that costs something; `ranks` defaults to all that were traced.

    With `of_transfer` the cost is exposed transfer, which holds waiting as well while not all ranks were traced.
    """
    cost_ms = min(cost_ms, view.step_ms)
    details = list(details)
    if of_transfer and not view.split:
        details.append(f"{_unsplit(view)}: waiting for late ranks is part of the cost")
        confidence = min(confidence, 0.7)
    file = view.profiles[0].file if ranks is None or not ranks else _file(view, ranks[0])
    return Finding(
        cause=cause,
        status="confirmed",
        summary=summary,
        confidence=confidence,
        ranks=view.ranks if ranks is None else ranks,
        victims=victims,
        group=group,
        where=where,
        cost=Cost(round(cost_ms, 3), "ms per step" if view.unit == "step" else "ms per window"),
        evidence=tuple(EvidenceItem("trace", file, detail) for detail in details),
        remedies=tuple(remedies),
        measured=of_step(view, cost_ms),
    )


def _unsplit(view: Overview) -> str:
    """Why waiting cannot be told from transfer."""
    if len(view.profiles) < 2:
        return "one rank alone was traced"
    return "the ranks' collectives could not be matched" if view.skew.complete else "not all ranks were traced"


def _file(view: Overview, rank: int) -> str:
    return next((one.file for one in view.profiles if one.rank == rank), view.profiles[0].file)


def ruled_out(cause: str, measured: str, summary: str = "") -> Finding:
    """A cause that is not it, with the value that says so."""
    return Finding(cause=cause, status="ruled_out", summary=summary or measured, measured=measured)


def too_little(view: Overview, cause: str, cost_ms: float, what: str = "") -> Finding:
    """A cause that may be there and costs less than is worth a word."""
    text = f"{what + ': ' if what else ''}at most {of_step(view, max(cost_ms, 0.0))}, below {SHARE:.0%}"
    return ruled_out(cause, text)


def undecided(cause: str, summary: str, missing: str = NO_TRACE) -> Finding:
    """A cause that the evidence cannot decide."""
    return Finding(cause=cause, status="undecided", summary=summary, confidence=0.0, missing=missing)


def override(view: Overview, change: str, why: str, code: str, cost_ms: float) -> Remedy:
    """For a dtk run what to type, for others what to change."""
    saves = f"at most {of_step(view, cost_ms)}"
    if view.run is not None and view.run.config:
        return Remedy("override", change, why, saves)
    return Remedy("code", code, why, saves)


def call_sites(evidence: Evidence, op: str, outside: tuple[str, ...] = ("logging", "evaluation")) -> tuple[Where, ...]:
    """The user's line that issued most of an operation, from the records of calls of the first ranks."""
    found: Counter[tuple[int, str, int, str, str]] = Counter()
    everything: list[RingFile | FlightFile] = [*evidence.rings, *evidence.flight]
    files = sorted(everything, key=lambda file: (file.rank is None, file.rank or 0, file.file))
    ranks: set[int | None] = set()
    for file in files:
        if len(ranks | {file.rank}) > _RANKS_READ:
            break
        try:
            dumps = file.load()
        except (OSError, ValueError):
            continue
        ranks.add(file.rank)
        for dump in dumps:
            for call in dump.calls:
                site = call.site
                if call.wire.op == op and site is not None and call.region not in outside:
                    found[(dump.rank if dump.rank is not None else -1, site.file, site.line, site.function, op)] += 1
    if not found:
        return ()
    (rank, file_name, line, function, _), _ = min(found.items(), key=lambda item: (-item[1], item[0]))
    return (Where(rank if rank >= 0 else None, file_name, line, function, op),)
