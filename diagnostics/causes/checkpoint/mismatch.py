"""`checkpoint.mismatch`: a checkpoint does not match the model, optimizer or world size that loads it."""

from collections.abc import Iterable
from itertools import takewhile

from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import CITED, LIKELY, SEEN, EvidenceItem, Finding, Where, confirmed
from diagnostics.evidence.calls import is_library, own_line
from diagnostics.evidence.endings import kind_of_exception
from diagnostics.evidence.model import Evidence, RankError, shortened

_TEXTS = Texts(__file__)
_TEXT = patterns_beside(__file__, "patterns")
"""Compiled patterns, documented in the table."""


def decide(evidence: Evidence) -> Finding:
    """Decide from errors raised by the loaders of torch, DeepSpeed and Megatron, except those the program caught."""
    errors = [error for error in evidence.errors if _loader_text(_said(error))]
    caught = any(fact.kind == "handled_error" and _loader_text(fact.fields["message"]) for fact in evidence.facts)
    raised = (e for e in evidence.errors if e.frames and kind_of_exception(e.type, e.message, e.frames) == "raised")
    caught |= any(error not in errors and not _TEXT["may_load"].search(str(error.frames)) for error in raised)
    lines = {(error.file, error.line) for error in errors}
    keys = [f for f in evidence.facts if f.kind == "checkpoint_key" and not caught and (f.file, f.line) not in lines]
    if not errors and not keys:
        return _TEXTS.undecided()
    message = _said(errors[0]) if errors else ""
    lists = {match["which"]: _TEXT["name"].findall(match["keys"]) for match in _TEXT["keys"].finditer(message)}
    missing, unexpected = lists.get("Missing", []), lists.get("Unexpected", [])
    sizes, prefix = [*_TEXT["size"].finditer(message)], _prefix(missing, unexpected)
    parts = [_TEXTS.phrase("missing", count=len(missing))] if missing else []
    parts += [_TEXTS.phrase("unexpected", count=len(unexpected))] if unexpected else []
    parts += [_TEXTS.phrase("size", **match.groupdict()) for match in sizes[:2]]
    sides = ("model", "checkpoint") if prefix.startswith("-") else ("checkpoint", "model")
    own = own_line(frame for error in errors for frame in error.frames)
    items = [EvidenceItem("error", at.file, shortened(at.message), at.line or None) for at in errors[:CITED]]
    items += [fact.quoted() for fact in keys[:CITED]]
    named = {error.rank for error in errors} | {fact.rank for fact in keys}
    ranks = tuple(sorted(rank for rank in named if rank is not None))
    is_whole = bool(errors) or any("key" in fact.fields for fact in keys)
    return confirmed(
        facts=_TEXTS.facts(
            "prefix" if prefix else "sizes" if sizes else "default",
            who=ranks or "the program",
            differs=parts or [(_loader_text(message) or keys[0].text).rstrip(".")],
            side=sides[0],
            other=sides[1],
            prefix=prefix.removeprefix("-"),
            records=len(items),
            key=sizes[0]["key"] if sizes else "",
        ),
        confidence=SEEN if is_whole else LIKELY,  # A program may log what it caught.
        ranks=ranks,
        where=(Where(errors[0].rank, own.file, own.line, own.function, _TEXTS.phrase("does")),) if own else (),
        evidence=tuple(items),
    )


def _said(error: RankError) -> str:
    """Return the message; of a KeyError, which only has the key, and of what a loader raised also class and place."""
    # A library's loader fails in what it calls, such as an optimizer that lacks the state of another class.
    below = takewhile(lambda at: is_library(at.file), error.frames[1:]) if error.type == "KeyError" else ()
    places = (f"{at.file}:{at.function}" for at in (*error.frames[:1], *below))
    place = [*filter(_TEXT["loads"].search, places)][:1]
    loads = bool(place) and kind_of_exception(error.type, error.message, error.frames) == "raised"
    return ": ".join((error.type, error.message, *place)) if loads or error.type == "KeyError" else error.message


def _loader_text(message: str) -> str:
    """Return the loader's error text in a message; empty if there is none."""
    match = _TEXT["loader"].search(message)
    return match.group() if match else ""


def _prefix(missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """Return the prefix that all keys of only one side share, with a leading minus if that side is the model."""
    for sign, short, long in (("", [*missing], [*unexpected]), ("-", [*unexpected], [*missing])):
        front = long[0].removesuffix(short[0]) if short and long and long[0].endswith(short[0]) else ""
        if front and all(key.startswith(front) for key in long):
            return sign + front
    return ""


CAUSE = declared(__file__, lambda evidence: evidence, decide)
