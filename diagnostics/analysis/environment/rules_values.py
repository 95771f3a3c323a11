"""Rules about one variable. Its name may be unknown, removed, renamed, or newer than the NCCL in use. Its value may be
a number that NCCL misreads, a word in the wrong case, or out of range.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import Catalogue, Variable, catalogue
from diagnostics.analysis.environment.situation import Change, Lint, Severity, Situation, Value, assign, lint_of
from diagnostics.contract.suggest import nearest

CLOSE, CLOSE_JUDGED = 0.8, 0.9
"""Minimum similarity (difflib's ratio, without the prefix) of a misspelled name, and of one that may also be right."""
JUDGED = ("TORCH_", "GLOO_", "PYTORCH_")
"""Prefixes with more names than any catalogue holds: such names are reported only if they resemble a known one."""


def check_name(name: str, where: Situation) -> Iterator[Lint]:
    """Yield the lints about the name of a variable that is set."""
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
        meant = meant_by(name, book.torch, CLOSE_JUDGED)
        if meant and meant not in where.variables:
            yield lint_of("error", name, "slip", Change(name, meant), meant=meant)


def _nccl(name: str, where: Situation, book: Catalogue) -> Iterator[Lint]:
    """Yield the lint about a name with the prefix NCCL_ that the newest release of NCCL does not read."""
    if name in book.foreign or name.startswith(book.foreign_prefixes):
        return
    newer = where.nccl_version is not None and where.nccl_version > book.newest
    if name in book.legacy:
        yield _renamed("note", name, "renamed_by_torch", book.legacy[name])
    elif name in book.removed_legacy:
        yield _renamed("warning", name, "dropped_by_torch", book.removed_legacy[name])
    elif name in book.removed:
        last, successor = book.removed[name].last, book.removed[name].use
        if where.nccl_version is None or where.nccl_version[: len(last)] > last:
            removed = lint_of("warning", name, "removed", Change(name), last=last)
            yield _renamed("warning", name, "replaced", successor, last=last) if successor else removed
    elif name in book.dead:
        yield lint_of("warning", name, "never_read", Change(name), why=book.dead[name])
    elif name in book.advice:
        yield lint_of("error", name, "no_such_setting", advice=book.advice[name])
    elif meant := book.typos.get(name) or meant_by(name, [*book.nccl, *book.legacy], CLOSE_JUDGED if newer else CLOSE):
        yield lint_of("error", name, "slip", Change(name, meant), meant=meant)
    else:
        yield lint_of("note" if newer else "warning", name, "not_public", newest=book.newest)


def _renamed(severity: Severity, name: str, rule: str, successor: str, **values: Value) -> Lint:
    return lint_of(severity, name, rule, Change(name, successor), successor=successor, **values)


def meant_by(name: str, candidates: Iterable[str], close: float) -> str:
    """Return the candidate most similar to `name`; empty if none is close. The prefix (`NCCL_`) is not compared."""
    prefix, _, word = name.partition("_")
    names = {candidate.removeprefix(f"{prefix}_"): candidate for candidate in candidates}
    return next((names[candidate] for candidate in nearest(word, names, 1, close)), "")


_OFF_WORDS = frozenset({"off", "no", "n", "false", "f", "none", "disable", "disabled"})
"""Words by which a user means 0, which is also what NCCL reads."""
_BLANKS_THEMSELVES = frozenset({"interface", "hca", "gloo_interface"})
"""Types whose own check handles spaces around a name."""
_BLANKS_ALLOWED = frozenset({"NCCL_DEBUG_TIMESTAMP_FORMAT"})
_NUMBERS = frozenset({"int", "torch_int"})
"""Types whose parser ignores leading spaces."""
_BRACKETS = re.compile(r"\[[^\[\]]*\]?")
_PORTS = range(1, 65536)  # Ports of TCP.
_IB_TIMEOUTS = range(1, 32)  # The field of a queue pair has 5 bits, and 0 means to wait forever (InfiniBand spec.).
_PER_FUNCTION = (2, 24)  # First NCCL in which NCCL_ALGO and NCCL_PROTO may name a function, and an unknown word fails.
_DIGITS = 20  # Maximum number of digits of a port that are read and shown.
_ON_WORDS = frozenset({"on", "yes", "y", "true", "t", "enable", "enabled"})


def check_value(name: str, text: str, where: Situation) -> Iterator[Lint]:
    """Yield the lints about the value of a known variable. An empty value means unset and is always valid."""
    variable = catalogue().find(name)
    if variable is None or not text:
        return
    stripped = text.strip()
    if stripped and stripped != text and variable.type not in _BLANKS_THEMSELVES and name not in _BLANKS_ALLOWED:
        if variable.type not in _NUMBERS:
            yield lint_of(
                "error", name, "carriage_return" if "\r" in text else "blank", assign(name, stripped), text=text
            )
        elif "\r" in text:
            yield lint_of("note", name, "carriage_return_behind_number", assign(name, stripped), text=text)
        text = stripped
    if variable.type in _SIMPLE:
        is_valid, severity, rule = _SIMPLE[variable.type]
        if not is_valid(text, variable):
            yield lint_of(severity, name, rule, text=text, sign=text[0])
    else:
        yield from _CHECKS[variable.type](variable, text, where)


def _integer(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    read, name = values.number(text), variable.name
    if not read.digits:
        word = text.strip("\"' ").lower()
        severity: Severity = "note" if word in _OFF_WORDS else "error"
        if word in _ON_WORDS | _OFF_WORDS:
            yield lint_of(severity, name, "word_as_zero", assign(name, "1" if word in _ON_WORDS else "0"), text=text)
        else:
            yield lint_of(severity, name, "no_number", text=text)
    elif read.rest.strip() or read.octal:
        yield lint_of("error", name, "octal" if read.octal else "number_cut", text=text, value=read.value)
    elif name == "NCCL_IB_TIMEOUT" and read.value not in _IB_TIMEOUTS:
        yield lint_of("warning", name, "infinite_timeout", value=read.value)
    # -1 and -2 mean "chosen by NCCL", unless the range itself contains negative numbers.
    elif not _allowed(variable, read.value) and (read.value not in (-1, -2) or (variable.low or 0) < 0):
        yield lint_of("warning", name, "out_of_range", value=read.value)


def _allowed(variable: Variable, value: int) -> bool:
    within = (variable.low is None or variable.low <= value) and (variable.high is None or value <= variable.high)
    return within and (not variable.values or value in variable.values)


def _level(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    upper = text.strip().upper()
    if values.level(text) is None and upper in values.LEVELS:
        yield lint_of("error", variable.name, "level_case", assign(variable.name, upper), text=text)
    elif values.level(text) is None:
        yield lint_of("error", variable.name, "level", text=text)


def _list(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if unknown := tuple(word for word in values.words(text) if word.upper() not in variable.values):
        yield lint_of("warning", variable.name, "list_word", words=unknown)


def _tuning(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    allowed = {str(value).lower() for value in variable.values}
    old = where.nccl_version is not None and where.nccl_version < _PER_FUNCTION
    if unknown := tuple(word for word in values.tuning(text) if word.lower() not in allowed):
        yield lint_of("error", variable.name, "tuning_ignored" if old else "tuning_refused", words=unknown)
    prefixes = values.prefixes(text)
    if foreign := tuple(word for word in prefixes if old or word.lower() not in values.FUNCTIONS):
        yield lint_of("error", variable.name, "function_too_new" if old else "no_function", words=foreign)


def _interfaces(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if variable.type == "gloo_interface":
        if any(sign in text for sign in "^=") or text != text.strip():
            yield lint_of("error", variable.name, "gloo_syntax", text=text)
        return
    listed = values.names(text, hca=variable.type == "hca")
    if not listed.names or any(name[0] in "^=" or " " in name or name != name.strip() for name in listed.names):
        yield lint_of("error", variable.name, "list_syntax", text=text)
    if variable.type == "hca" and len(listed.names) > values.MAX_HCAS:
        yield lint_of("warning", variable.name, "too_many_hcas", most=values.MAX_HCAS, count=len(listed.names))


def _address(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    port = text.rpartition(":")[2]
    if ":" not in text or not port.isascii() or not port.isdigit():
        yield lint_of("error", variable.name, "no_port", text=text)
    elif len(port) > _DIGITS or int(port) not in _PORTS:
        yield lint_of("warning", variable.name, "port", port=port[:_DIGITS])


def _torch_int(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    value = values.torch_int(text)
    if value is None:
        yield lint_of("error", variable.name, "torch_number", text=text)
    elif not _allowed(variable, value):
        yield lint_of("warning", variable.name, "out_of_range", value=value)


def _allocator(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    """Yield the misspelled keys of `key:value,key:[value,...]`; the contents of brackets are ignored."""
    allowed = catalogue().allocator_keys
    keys = [part.partition(":")[0].strip() for part in _BRACKETS.sub("", text).split(",")]
    for key in keys:
        if key and key not in allowed and (near := nearest(key, allowed, 1, CLOSE)):
            yield lint_of("error", variable.name, "allocator_key", key=key, meant=near[0])


_CHECKS: dict[str, Callable[[Variable, str, Situation], Iterator[Lint]]] = {
    **dict.fromkeys(("interface", "hca", "gloo_interface"), _interfaces),
    "int": _integer, "torch_int": _torch_int, "level": _level, "list": _list, "tuning": _tuning,
    "address": _address, "allocator": _allocator,
}  # fmt: skip
_SIMPLE: dict[str, tuple[Callable[[str, Variable], bool], Severity, str]] = {
    "word": (lambda text, of: text.upper() in of.values, "warning", "word"),
    "strict_word": (lambda text, of: text.upper() in of.values, "error", "torch_word"),
    "exact_word": (lambda text, of: text in of.values, "error", "exact_word"),
    "bool": (lambda text, _: text.upper() in ("1", "T", "TRUE", "0", "F", "FALSE"), "warning", "switch"),
    "torch_bool": (lambda text, _: values.torch_bool(text) is not None, "error", "torch_switch"),
    **dict.fromkeys(("file", "path"), (lambda text, _: text[0] not in "~'\"", "error", "path_sign")),
    "text": (lambda *_: True, "note", ""),
}
"""Type -> whether a value is valid, the severity of an invalid one, and the rule that it breaks."""
