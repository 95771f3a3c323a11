"""What a preflight says better than the detectors can: they see calls up to a stall, not whole programs."""

from dataclasses import replace

from diagnostics.contract.findings import Finding, Remedy, Where
from dtk.preflight.match import Misfit
from dtk.preflight.parting import Parting

_MANY = " It is a tie (1 against 1 against "


def worded(found: Finding, known: Parting | Misfit | None) -> Finding:
    """The finding in better words, where there are any.

    Args:
        found: what the detector of hangs said.
        known: what the detector was told.
    """
    if found.status != "confirmed":
        return found
    if isinstance(known, Misfit):
        return _fitting(found, known) if found.cause == "hang.signature_mismatch" else found
    if isinstance(known, Parting) and known.over and found.ranks == known.ranks:
        return replace(found, where=tuple(_last(place, known) for place in found.where))
    return _nobody(found) if known is None and _MANY in found.summary else found


def _fitting(found: Finding, misfit: Misfit) -> Finding:
    """For lengths the remedy is to make both ends equal."""
    places = [f"{place.file}:{place.line}" for place in found.where]
    if not places:
        return found
    change = (
        f"let what rank {misfit.sender} sends at {places[0]} be as long as what rank {misfit.receiver} expects at "
        f"{places[-1]}"
    )
    why = "both ends of a transfer need the same number of bytes: exchange the sizes before the data"
    kept = tuple(one for one in found.remedies if one.kind != "code")
    return replace(found, remedies=(*kept, Remedy("code", change, why)))


def _last(place: Where, parting: Parting) -> Where:
    """A rank without a call there is not in one."""
    if place.rank != parting.odd_rank:
        return place
    return replace(place, does=f"ends after {place.does.removeprefix('is already in ')}")


def _nobody(found: Finding) -> Finding:
    """Where no two ranks agree, none is to blame more than another."""
    told = f"{found.summary.partition(_MANY)[0]} No two ranks agree, so none of them is the odd one out."
    return replace(found, summary=told, ranks=(), victims=tuple(sorted({*found.ranks, *found.victims})))
