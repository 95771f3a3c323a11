"""Rules about one variable's name: unknown, removed, older than its replacement, newer than the NCCL in use."""

from collections.abc import Iterator
from difflib import SequenceMatcher

from diagnostics.analysis.environment.catalogue import Catalogue, catalogue
from diagnostics.analysis.environment.situation import Change, Lint, Severity, Situation, Value, lint_of

CLOSE = 0.8
"""Similarity (difflib's ratio of the names behind NCCL_, 0 to 1) from which a name is taken for a slip."""
JUDGED = ("TORCH_", "GLOO_", "PYTORCH_")
"""Prefixes with more names than any catalogue holds: judged only when they resemble a known one."""
CLOSE_JUDGED = 0.9  # Stricter than CLOSE, as most names with these prefixes are right and unknown. A convention.


def check_name(name: str, where: Situation) -> Iterator[Lint]:
    """Yield what is wrong with the name of one variable that is set."""
    book = catalogue()
    variable, version = book.find(name), where.nccl_version
    if variable is not None:
        if version and variable.since and version < variable.since:
            yield lint_of("warning", name, "newer_than_nccl", version=version, since=variable.since)
        if variable.deprecated and (version is None or version >= variable.deprecated):
            yield _renamed("note", name, "deprecated", variable.use, since=variable.deprecated)
    elif name.startswith("NCCL_"):
        yield from _nccl(name, where, book)
    elif name.startswith(JUDGED):
        meant = nearest(name, list(book.torch), CLOSE_JUDGED)
        if meant and meant not in where.variables:
            yield lint_of("error", name, "slip", Change(name, meant), meant=meant)


def _nccl(name: str, where: Situation, book: Catalogue) -> Iterator[Lint]:
    """Yield a name that NCCL's newest release does not read."""
    if name in book.foreign or name.startswith(book.foreign_prefixes):
        return
    if name in book.legacy:
        yield _renamed("note", name, "renamed_by_torch", book.legacy[name])
    elif name in book.gone_legacy:
        yield _renamed("warning", name, "dropped_by_torch", book.gone_legacy[name])
    elif name in book.removed:
        last, successor = book.removed[name].last, book.removed[name].use
        if where.nccl_version is None or where.nccl_version[: len(last)] > last:
            removed = lint_of("warning", name, "removed", Change(name), last=last)
            yield _renamed("warning", name, "replaced", successor, last=last) if successor else removed
    elif name in book.dead:
        yield lint_of("warning", name, "never_read", Change(name), why=book.dead[name])
    elif name in book.advice:
        yield lint_of("error", name, "no_such_setting", advice=book.advice[name])
    elif meant := book.typos.get(name) or nearest(name, [*book.nccl, *book.legacy], CLOSE):
        yield lint_of("error", name, "slip", Change(name, meant), meant=meant)
    else:
        newer = where.nccl_version is not None and where.nccl_version > book.newest
        yield lint_of("note" if newer else "warning", name, "not_public", newest=book.newest)


def _renamed(severity: Severity, name: str, rule: str, successor: str, **values: Value) -> Lint:
    return lint_of(severity, name, rule, Change(name, successor), successor=successor, **values)


def nearest(name: str, candidates: list[str], close: float) -> str | None:
    """Return the candidate most similar to `name`, or None if no candidate is close. The prefix is not compared."""
    prefix, _, word = name.partition("_")
    best, score = None, close
    for candidate in candidates:
        other = candidate.removeprefix(f"{prefix}_")
        matcher = SequenceMatcher(None, word, other)
        if matcher.real_quick_ratio() >= score and matcher.quick_ratio() >= score and matcher.ratio() >= score:
            best, score = candidate, matcher.ratio()
    return best
