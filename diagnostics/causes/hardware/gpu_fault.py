"""A device failed: its memory, its link, its processor, or its connection to the bus."""

from diagnostics.analysis.gpu_faults import HARMLESS, MEANINGS, WORST, XIDS, Event, gpu_faults
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import CERTAIN, CITED, SUSPECTED, EvidenceItem, Finding, FormattedFacts

_TEXTS = Texts(__file__)


def _facts(events: tuple[Event, ...], ranks: tuple[int, ...], *more: str) -> FormattedFacts:
    after = min((event.after for event in events), key=WORST.index)
    faults = [
        _TEXTS.phrase(
            "fault",
            what=MEANINGS.get(event.code, MEANINGS[0]),
            xid=f" (Xid {event.code})" if event.by_driver else "",
            device=f" on {event.device}" if event.device else "",
        )
        for event in sorted(events, key=lambda event: not event.by_driver)  # These also name the device.
        if event.by_driver or not any(earlier.by_driver and earlier.code == event.code for earlier in events)
    ]
    rows = ("default", "used", after) if ranks else ("default", after)
    return _TEXTS.facts((*rows, *more), faults=[*dict.fromkeys(map(str, faults))][:3], events=len(events))


def decide(faults: tuple[Event, ...]) -> Finding:
    """Decide from the driver's Xid messages and from CUDA errors."""
    failed = tuple(event for event in faults if event.after not in HARMLESS)
    events = failed or faults
    if not events:
        return _TEXTS.undecided()
    ranks = tuple(sorted({event.rank for event in failed if event.rank is not None}))
    # An event in the kernel log may be older than the job; half of the catalogue's codes are a program's faults.
    is_fatal = any(event.code in XIDS and not (event.survived or event.aside) for event in events)
    row = "survived" if events[0].survived else "aside" if events[0].aside else "unknown"
    return Finding(
        status="confirmed" if failed else "undecided",
        facts=_facts(events, ranks, *(() if is_fatal else (row,))),
        confidence=(CERTAIN if is_fatal else SUSPECTED) if failed else 0.0,
        ranks=ranks,
        evidence=tuple(EvidenceItem("log", event.file, event.text, event.line) for event in events[:CITED]),
    )


CAUSE = declared(__file__, gpu_faults, decide)
