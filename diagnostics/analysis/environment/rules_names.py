"""Rules about one variable's name: unknown, removed, older than its replacement, newer than the NCCL in use."""

from collections.abc import Iterator
from difflib import SequenceMatcher

from diagnostics.analysis.environment.catalogue import Catalogue, Version, catalogue
from diagnostics.analysis.environment.situation import Change, Lint, Severity, Situation, unset

CLOSE = 0.8
"""Similarity (difflib's ratio of the names behind NCCL_, 0 to 1) from which a name is taken for a slip."""
JUDGED = ("TORCH_", "GLOO_", "PYTORCH_")
"""Prefixes with more names than any catalogue holds: judged only when they resemble a known one."""
CLOSE_JUDGED = 0.9


def check_name(name: str, where: Situation) -> Iterator[Lint]:
    """Yield what is wrong with the name of one variable that is set."""
    book = catalogue()
    variable, version = book.find(name), where.nccl_version
    if variable is not None:
        if version and variable.since and version < variable.since:
            message = f"NCCL {text(version)} does not read it; it came with {text(variable.since)}"
            yield _unknown("warning", name, message, f"unset it, or use NCCL {text(variable.since)} or newer")
        if variable.deprecated and (version is None or version >= variable.deprecated):
            message = f"it is deprecated since NCCL {text(variable.deprecated)}"
            yield Lint("note", name, message, _use(name, variable.use), "env.deprecated_variable")
    elif name.startswith("NCCL_"):
        yield from _nccl(name, where, book)
    elif name.startswith(JUDGED):
        meant = nearest(name, list(book.torch), CLOSE_JUDGED)
        if meant and meant not in where.variables:
            yield _slip(name, meant)


def _nccl(name: str, where: Situation, book: Catalogue) -> Iterator[Lint]:
    """Yield a name that NCCL's newest release does not read."""
    if name in book.foreign or name.startswith(book.foreign_prefixes):
        return
    old = "env.deprecated_variable"
    if name in book.legacy:
        new = book.legacy[name]
        yield Lint("note", name, "torch still reads it, but renamed it in 2.2", _use(name, new), old)
    elif name in book.gone_legacy:
        new = book.gone_legacy[name]
        yield Lint("warning", name, "torch does not read it since it was renamed in 2.2", _use(name, new), old)
    elif name in book.removed:
        removed = book.removed[name]
        if where.nccl_version is None or where.nccl_version[: len(removed.last)] > removed.last:
            message = f"NCCL {text(removed.last)} was the last to read it; now it does nothing"
            fix = _use(name, removed.use) if removed.use else unset(name, "unset it")
            yield Lint("warning", name, message, fix, old)
    elif name in book.dead:
        yield _unknown("warning", name, book.dead[name], unset(name, "unset it"))
    elif name in book.advice:
        yield _unknown("error", name, "nothing reads this variable", book.advice[name])
    elif meant := book.typos.get(name) or nearest(name, [*book.nccl, *book.legacy], CLOSE):
        yield _slip(name, meant)
    else:
        newer = where.nccl_version is not None and where.nccl_version > book.newest
        message = f"no public NCCL up to {text(book.newest)} reads it"
        yield _unknown("note" if newer else "warning", name, message, "check the name, or unset it")


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


def text(version: Version) -> str:
    """(2, 20, 5) -> `2.20.5`."""
    return ".".join(str(part) for part in version)


def _slip(name: str, meant: str) -> Lint:
    message = f"nothing reads this variable, so it has no effect; did you mean {meant}?"
    return _unknown("error", name, message, Change(f"rename it to {meant}", name, meant, in_message=True))


def _use(name: str, successor: str) -> Change:
    return Change(f"use {successor}", name, successor)


def _unknown(severity: Severity, name: str, message: str, fix: Change | str) -> Lint:
    return Lint(severity, name, message, fix, "env.unknown_variable")
