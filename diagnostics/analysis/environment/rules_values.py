"""Rules about one variable's value: numbers that NCCL misreads, words in the wrong case, values out of range.

By type of the catalogue; one function each. Knows no other variable.
"""

import re
from collections.abc import Callable, Iterator

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import Variable, catalogue
from diagnostics.analysis.environment.rules_names import CLOSE, nearest
from diagnostics.analysis.environment.situation import Lint, Severity, Situation, assign

MISREAD = "env.silent_zero"
INVALID = "env.invalid_value"
_OFF_WORDS = frozenset({"off", "no", "n", "false", "f", "none", "disable", "disabled"})
"""What means 0 to whoever types it; that NCCL reads 0 is then no surprise."""
_BLANKS_THEMSELVES = frozenset({"interface", "hca", "gloo_interface"})
"""Types whose own check says what a blank does to a name."""
_BLANKS_ALLOWED = frozenset({"NCCL_DEBUG_TIMESTAMP_FORMAT"})
_NUMBERS = frozenset({"int", "torch_int"})
"""Types whose reader skips blanks."""
_BRACKETS = re.compile(r"\[[^\[\]]*\]?")
_PORTS = range(1, 65536)
_DIGITS = 20
"""Of a port that are read and shown."""
FUNCTIONS = frozenset({"broadcast", "reduce", "allgather", "reducescatter", "allreduce"})
"""What may stand before the colon in NCCL_ALGO and NCCL_PROTO, in any case."""
_ON_WORDS = frozenset({"on", "yes", "y", "true", "t", "enable", "enabled"})


def check_value(name: str, text: str, where: Situation) -> Iterator[Lint]:
    """Yield what is wrong with the value of one known variable. An empty value means unset and is always valid."""
    variable = catalogue().find(name)
    if variable is None or not text:
        return
    bare = text.strip()
    if bare and bare != text and variable.type not in _BLANKS_THEMSELVES and name not in _BLANKS_ALLOWED:
        what = "a carriage return (Windows line ends)" if "\r" in text else "a blank"
        if variable.type not in _NUMBERS:
            message = f"{what} is part of the value {text!r}, which is compared whole"
            yield Lint("error", name, message, assign(name, bare), INVALID)
        elif "\r" in text:
            message = f"{what} stands behind the number {text!r}, which is read all the same"
            yield Lint("note", name, message, assign(name, bare), INVALID)
        text = bare
    if variable.type in _SIMPLE:
        is_valid, severity, message, fix = _SIMPLE[variable.type]
        if not is_valid(text, variable):
            choice = _choice(variable)
            yield Lint(severity, name, message.format(text=text, first=text[0]), fix.format(choice=choice), INVALID)
    else:
        yield from _CHECKS[variable.type](variable, text, where)


def _integer(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    read = values.number(text)
    name = variable.name
    if not read.digits:
        word = text.strip("\"' ").lower()
        fix = assign(name, "1") if word in _ON_WORDS else assign(name, "0") if word in _OFF_WORDS else "write a number"
        severity: Severity = "note" if word in _OFF_WORDS else "error"
        yield Lint(severity, name, f"NCCL reads {text!r} as the number 0, without a message", fix, MISREAD)
    elif read.rest.strip() or read.octal:
        why = " (a leading 0 means base 8)" if read.octal else ""
        yield Lint("error", name, f"NCCL reads {text!r} as {read.value}{why}", "write a plain number", MISREAD)
    elif name == "NCCL_IB_TIMEOUT" and not 0 < read.value < 32:
        message = f"{read.value} makes the InfiniBand timeout infinite: a broken link hangs for ever"
        yield Lint("warning", name, message, "use 20 (about 30 s) to 22 (about 2 min)", INVALID)
    # -1 and -2 are NCCL's own words for `choose by yourself`, unless the range itself goes below 0.
    elif not _allowed(variable, read.value) and (read.value not in (-1, -2) or (variable.low or 0) < 0):
        yield Lint("warning", name, f"{read.value} is not allowed", f"use {_choice(variable)}", INVALID)


def _allowed(variable: Variable, value: int) -> bool:
    if variable.values and value not in variable.values:
        return False
    above = variable.low is None or variable.low <= value
    return above and (variable.high is None or value <= variable.high)


def _choice(variable: Variable) -> str:
    if variable.values:
        return ", ".join(str(value) for value in variable.values)
    return f"{variable.low} to {variable.high}" if variable.high is not None else f"{variable.low} or more"


def _level(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if values.level(text) is not None:
        return
    upper = text.strip().upper()
    if upper in values.LEVELS:
        message = f"NCCL drops {text!r} without a message: levels count only in capitals"
        yield Lint("error", variable.name, message, assign(variable.name, upper), INVALID)
    else:
        fix = f"use one of {' '.join(values.LEVELS)}"
        yield Lint("error", variable.name, f"NCCL drops {text!r} without a message", fix, INVALID)


def _list(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    unknown = [word for word in values.words(text) if word.upper() not in variable.values]
    if unknown:
        message = f"{_spelled(unknown)} {_is(unknown)} ignored: there is no such word"
        yield Lint("warning", variable.name, message, f"use of {_choice(variable)}", INVALID)


def _tuning(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    allowed = {str(value).lower() for value in variable.values}
    unknown = [word for word in values.tuning(text) if word.lower() not in allowed]
    old = where.nccl_version is not None and where.nccl_version < (2, 24)
    effect = f"NCCL ignores {'them' if len(unknown) > 1 else 'it'}" if old else "NCCL refuses to start"
    if unknown:
        message = f"{_spelled(unknown)} {_is(unknown)} unknown: {effect}"
        yield Lint("error", variable.name, message, f"use of {_choice(variable)}", INVALID)
    prefixes = values.prefixes(text)
    foreign = prefixes if old else [word for word in prefixes if word.lower() not in FUNCTIONS]
    if foreign and old:
        message = f"{_spelled(foreign)} before a colon is read from NCCL 2.24 on"
        yield Lint("error", variable.name, message, "list the words without a function", INVALID)
    elif foreign:
        message = f"{_spelled(foreign)} before a colon {_is(foreign)} no function: NCCL 2.24 and newer refuses to start"
        yield Lint("error", variable.name, message, f"use of {', '.join(sorted(FUNCTIONS))}", INVALID)


def _spelled(words: list[str]) -> str:
    """Words with their blanks to be seen."""
    return ", ".join(word if word == word.strip() else repr(word) for word in words)


def _is(words: list[str]) -> str:
    return "are" if len(words) > 1 else "is"


def _interfaces(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if variable.type == "gloo_interface":
        if any(sign in text for sign in "^=") or text != text.strip():
            message = f"gloo takes exact names, comma separated: {text!r} is NCCL's syntax and matches no interface"
            fix = f"{variable.name}=<name of the interface>"
            yield Lint("error", variable.name, message, fix, "env.wrong_interface")
        return
    listed = values.names(text, hca=variable.type == "hca")
    if not listed.names or any(name[0] in "^=" or " " in name or name != name.strip() for name in listed.names):
        message = f"{text!r} does not name what it seems to: `^` and `=` stand once, before all names, and spaces count"
        yield Lint("error", variable.name, message, "write it as ^=name1,name2", INVALID)
    if variable.type == "hca" and len(listed.names) > values.MAX_HCAS:
        message = f"NCCL takes {values.MAX_HCAS} HCAs, {len(listed.names)} are listed"
        yield Lint("warning", variable.name, message, "list the HCAs of the compute rails only", INVALID)


def _address(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    port = text.rpartition(":")[2]
    if ":" not in text or not port.isascii() or not port.isdigit():
        yield Lint("error", variable.name, f"{text!r} has no port", "write host:port", INVALID)
    elif len(port) > _DIGITS or int(port) not in _PORTS:
        fix = f"use a port from {_PORTS[0]} to {_PORTS[-1]}"
        yield Lint("warning", variable.name, f"port {port[:_DIGITS]} is not allowed", fix, INVALID)


def _torch_int(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    value = values.torch_int(text)
    if value is None:
        yield Lint("error", variable.name, f"torch raises on {text!r}", "write a number", INVALID)
    elif not _allowed(variable, value):
        yield Lint("warning", variable.name, f"{value} is not allowed", f"use {_choice(variable)}", INVALID)


def _allocator(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    """Keys of `key:value,key:[value,...]`, without what stands in brackets."""
    known = catalogue().allocator_keys
    keys = [part.partition(":")[0].strip() for part in _BRACKETS.sub("", text).split(",")]
    for key in keys:
        meant = nearest(key, list(known), CLOSE) if key and key not in known else None
        if meant:
            yield Lint("error", variable.name, f"torch raises on the key {key!r}", f"did you mean {meant}?", INVALID)


_CHECKS: dict[str, Callable[[Variable, str, Situation], Iterator[Lint]]] = {
    "int": _integer,
    "level": _level,
    "list": _list,
    "tuning": _tuning,
    "interface": _interfaces,
    "hca": _interfaces,
    "address": _address,
    "torch_int": _torch_int,
    "gloo_interface": _interfaces,
    "allocator": _allocator,
}
_RAISES, _PATH = "torch raises on {text!r}", "NCCL takes {first!r} as part of the file name"
_SIMPLE: dict[str, tuple[Callable[[str, Variable], bool], Severity, str, str]] = {
    "word": (lambda text, of: text.upper() in of.values, "warning", "{text!r} is ignored", "use {choice}"),
    "strict_word": (lambda text, of: text.upper() in of.values, "error", _RAISES, "use {choice}"),
    "exact_word": (
        lambda text, of: text in of.values,
        "error",
        "NCCL ignores {text!r}, though its log prints it as set",
        "use exactly {choice}",
    ),
    "bool": (
        lambda text, _: text.upper() in ("1", "T", "TRUE", "0", "F", "FALSE"),
        "warning",
        "{text!r} counts as the default",
        "use 1 or 0",
    ),
    "torch_bool": (lambda text, _: values.torch_bool(text) is not None, "error", _RAISES, "use 1 or 0"),
    **dict.fromkeys(
        ("file", "path"),
        (lambda text, _: text[0] not in "~'\"", "error", _PATH, "write the whole path, without ~ or quotes"),
    ),
    "text": (lambda *_: True, "note", "", ""),
}
"""Type -> whether a value is valid, and the lint for one that is not."""
TYPES = frozenset(_CHECKS) | frozenset(_SIMPLE)
"""The types that the catalogue may use."""
