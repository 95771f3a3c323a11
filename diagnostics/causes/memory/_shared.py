"""What the findings of memory share: the confirmed finding, facts about what was not recorded, phrases."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import PREDICTED_RANKS, JobMemory, Prediction
from diagnostics.contract import findings
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Cost, Facts, Finding, Remedy, Where
from diagnostics.contract.formatting import bytes_text, ranks_spoken, sentence
from diagnostics.evidence.model import Frame

ALMOST_ALL = 0.9
"""Of all parameters: from here on a gather is the whole model; a root unit with the embeddings alone is less."""
SOME_MORE = 1.3
"""Of all parameters: padding makes a gather of the whole model up to so much larger (dim-0 sharding of GPT-2, 1024
ranks: +12 to +17 %)."""
LEAST_SHARE = 0.02
"""Of the peak: what costs less is not reported."""
UNITS_IN_USE = 2
"""Units that are gathered at once with prefetch: the one in use and the next."""
_NOT_RECORDED = table_beside(__file__)
ON_CPU = "the run is on CPU: there is neither a caching allocator nor a device"


def absent(cause: str, what: str, **figures: object) -> list[Finding]:
    """Return that there is nothing of what the cause is about; `what` says so, with `{name}` for a figure."""
    return [findings.ruled_out(cause, f"{sentence(what)}.", what, **figures)]


def unsharded(cause: str, job: JobMemory) -> list[Finding]:
    """Return that the strategy shards nothing."""
    return absent(cause, "strategy {strategy} shards no parameters", strategy=job.size.strategy)


def ruled_out(cause: str, summary: str, measured: str, **figures: object) -> list[Finding]:
    """Return the finding that it is not so, with the figures that say it."""
    return [findings.ruled_out(cause, summary, measured, **figures)]


def not_recorded(cause: str, job: JobMemory, what: str, **figures: object) -> list[Finding]:
    """Return that what it takes to decide a cause, by its name in `_shared.yaml`, is not among the evidence."""
    entry = _NOT_RECORDED[what]
    return [findings.undecided(cause, entry["summary"], entry["override" if job.is_dtk else "file"], **figures)]


def fix(is_dtk: bool, override: str, change: str, why: str, saves: str) -> Remedy:
    """Return what to type for a run of dtk, and what to change in any other program."""
    return Remedy("override", override, why, saves) if is_dtk and override else Remedy("code", change, why, saves)


def confirmed(
    cause: str, job: JobMemory, facts: Facts, *, ranks: Iterable[int], cost_bytes: float, **more: Any
) -> list[Finding]:
    """Return the finding that it is so; without a line of its own it gets those in which its ranks ran out."""
    finding = Finding(cause=cause, status="confirmed", facts=facts, ranks=tuple(ranks), **more)
    return [replace(finding, where=finding.where or job.ran_out_at(finding.ranks), cost=Cost(cost_bytes, "bytes"))]


def call_site(call: Gather, ranks: tuple[int, ...]) -> tuple[Where, ...]:
    """Return the line of a gather, attributed to the first of the ranks."""
    does = f"{call.op} of {bytes_text(call.full_bytes)}"
    return where(call.site, call.at_head, ranks[0] if ranks else None, does)


def where(site: Frame | None, at_head: bool, rank: int | None, does: str) -> tuple[Where, ...]:
    """Return the line, and say if it is only the first line of the function."""
    if site is None:
        return ()
    head = "a line of the script around it" if site.function == "<module>" else "the line is the function's first"
    return (Where(rank, site.file, site.line, site.function, f"{does} ({head})" if at_head else does),)


def spot(site: Frame | None, at_head: bool) -> str:
    """` at sharded.py:54`; where the line is only the function's head, ` in log_norms (sharded.py:50)`."""
    if site is None:
        return ""
    name = site.file.replace("\\", "/").rpartition("/")[2]
    if not at_head:
        return f" at {name}:{site.line}"
    return f" in {name}" if site.function == "<module>" else f" in {site.function} ({name}:{site.line})"


def percent(part: float) -> str:
    """`22 %`"""
    return f"{part:.0%}".replace("%", " %")


def share(part_bytes: float, peak_bytes: int | None) -> str:
    """` (22 % of the peak of 15.1 MiB)`; empty without a peak."""
    if not peak_bytes:
        return ""
    return f" ({percent(min(part_bytes / peak_bytes, 9.99))} of the peak of {bytes_text(peak_bytes)})"


def of_peak(saved_bytes: float, peak_bytes: int | None) -> str:
    """`3.1 GiB of 14.8 GiB`"""
    return bytes_text(saved_bytes) + (f" of {bytes_text(peak_bytes)}" if peak_bytes else "")


def rank_names(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-3`; `every rank` if no rank is named."""
    numbers = set(ranks)
    return ranks_spoken(numbers) if numbers else "every rank"


def on_more_ranks(prediction: Prediction | None, before: str = "; ") -> str:
    """`; on 64 ranks a rank would need 120 MiB, without it 40 MiB`"""
    if prediction is None:
        return ""
    needs, without = bytes_text(prediction.peak_bytes), bytes_text(prediction.without_bytes)
    return f"{before}on {PREDICTED_RANKS} ranks a rank would need {needs}, without it {without}"
