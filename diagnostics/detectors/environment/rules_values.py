"""Rules about one variable's value: numbers that NCCL misreads, words in the wrong case, values out of range.

By type of the catalogue; one function each. Knows no other variable.
"""

from collections.abc import Callable, Iterator

from diagnostics.detectors.environment import values
from diagnostics.detectors.environment.catalogue import Variable, catalogue
from diagnostics.detectors.environment.rules_names import CLOSE, nearest
from diagnostics.detectors.environment.situation import Lint, Severity, Situation

MISREAD = "env.silent_zero"
INVALID = "env.invalid_value"
_OFF_WORDS = frozenset({"off", "no", "n", "false", "f", "none", "disable", "disabled"})
"""What means 0 to whoever types it; that NCCL reads 0 is then no surprise."""
_ON_WORDS = frozenset({"on", "yes", "y", "true", "t", "enable", "enabled"})


def check_value(name: str, text: str, where: Situation) -> Iterator[Lint]:
    """What is wrong with the value of one known variable. Empty means unset and is never wrong."""
    variable = catalogue().find(name)
    if variable is not None and text:
        yield from _CHECKS[variable.type](variable, text, where)


def _integer(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    read = values.number(text)
    name = variable.name
    if not read.digits:
        word = text.strip("\"' ").lower()
        fix = f"{name}=1" if word in _ON_WORDS else f"{name}=0" if word in _OFF_WORDS else "write a number"
        severity: Severity = "note" if word in _OFF_WORDS else "error"
        yield Lint(severity, name, f"NCCL reads {text!r} as the number 0, without a message", fix, MISREAD)
    elif read.rest.strip() or read.octal:
        why = " (a leading 0 means base 8)" if read.octal else ""
        yield Lint("error", name, f"NCCL reads {text!r} as {read.value}{why}", "write a plain number", MISREAD)
    elif name == "NCCL_IB_TIMEOUT" and not 0 < read.value < 32:
        message = f"{read.value} makes the InfiniBand timeout infinite: a broken link hangs for ever"
        yield Lint("warning", name, message, "use 20 (about 30 s) to 22 (about 2 min)", INVALID)
    elif read.value >= 0 and not _allowed(variable, read.value):
        yield Lint("warning", name, f"{read.value} is not allowed", f"use {_choice(variable)}", INVALID)


def _allowed(variable: Variable, value: int) -> bool:
    """Negative numbers are NCCL's own words for `choose by yourself`, so only others are held against the range."""
    if variable.values and value not in variable.values:
        return False
    return variable.low is None or variable.high is None or variable.low <= value <= variable.high


def _choice(variable: Variable) -> str:
    if variable.values:
        return ", ".join(str(value) for value in variable.values)
    return f"{variable.low} to {variable.high}"


def _level(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if values.level(text) is not None:
        return
    upper = text.strip().upper()
    if upper in values.LEVELS:
        message = f"NCCL drops {text!r} without a message: levels count only in capitals"
        yield Lint("error", variable.name, message, f"{variable.name}={upper}", INVALID)
    else:
        yield Lint("error", variable.name, f"NCCL drops {text!r} without a message", f"use one of {_levels()}", INVALID)


def _levels() -> str:
    return " ".join(values.LEVELS)


def _exact_word(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if text not in variable.values:
        message = f"NCCL ignores {text!r}, though its log prints it as set"
        yield Lint("error", variable.name, message, f"use exactly {_choice(variable)}", INVALID)


def _word(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if text.strip().upper() not in variable.values:
        yield Lint("warning", variable.name, f"{text!r} is ignored", f"use {_choice(variable)}", INVALID)


def _strict_word(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if text.upper() not in variable.values:
        yield Lint("error", variable.name, f"torch raises on {text!r}", f"use {_choice(variable)}", INVALID)


def _list(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    unknown = [word for word in values.words(text) if word.strip().upper() not in variable.values]
    if unknown:
        message = f"{', '.join(unknown)} is ignored: there is no such word"
        yield Lint("warning", variable.name, message, f"use of {_choice(variable)}", INVALID)


def _tuning(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    allowed = {str(value).lower() for value in variable.values}
    unknown = [word for word in values.tuning(text) if word.strip().lower() not in allowed]
    if not unknown:
        return
    effect = "NCCL ignores it" if where.at_least((2, 24)) is False else "NCCL refuses to start"
    message = f"{', '.join(unknown)} is unknown: {effect}"
    yield Lint("error", variable.name, message, f"use of {_choice(variable)}", INVALID)


def _interfaces(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    listed = values.names(text, hca=variable.type == "hca")
    odd = [name for name in listed.names if name != name.strip() or name.startswith(("^", "=")) or " " in name]
    if odd or not listed.names:
        message = f"{text!r} does not name what it seems to: `^` and `=` stand once, before all names, and spaces count"
        yield Lint("error", variable.name, message, "write it as ^=name1,name2", INVALID)
    if variable.type == "hca" and len(listed.names) > values.MAX_HCAS:
        message = f"NCCL takes {values.MAX_HCAS} HCAs, {len(listed.names)} are listed"
        yield Lint("warning", variable.name, message, "list the HCAs of the compute rails only", INVALID)


def _path(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if text.startswith(("~", "'", '"')):
        message = f"NCCL takes {text[0]!r} as part of the file name"
        yield Lint("error", variable.name, message, "write the whole path, without ~ or quotes", INVALID)


def _address(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    port = text.rpartition(":")[2]
    if ":" not in text or not port.isascii() or not port.isdigit():
        yield Lint("error", variable.name, f"{text!r} has no port", "write host:port", INVALID)


def _nccl_bool(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if text.upper() not in ("1", "T", "TRUE", "0", "F", "FALSE"):
        yield Lint("warning", variable.name, f"{text!r} counts as the default", "use 1 or 0", INVALID)


def _torch_bool(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if values.torch_bool(text) is None:
        yield Lint("error", variable.name, f"torch raises on {text!r}", "use 1 or 0", INVALID)


def _torch_int(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    value = values.torch_int(text)
    if value is None:
        yield Lint("error", variable.name, f"torch raises on {text!r}", "write a number", INVALID)
    elif not _allowed(variable, value):
        yield Lint("warning", variable.name, f"{value} is not allowed", f"use {_choice(variable)}", INVALID)


def _gloo_interfaces(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    if any(sign in text for sign in "^=") or text != text.strip():
        message = f"gloo takes exact names, comma separated: {text!r} is NCCL's syntax and matches no interface"
        yield Lint("error", variable.name, message, f"{variable.name}=<name of the interface>", "env.wrong_interface")


def _allocator(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    keys = catalogue().allocator_keys
    for key in _allocator_keys(text):
        meant = None if key in keys else nearest(key, list(keys), CLOSE)
        if meant:
            yield Lint("error", variable.name, f"torch raises on the key {key!r}", f"did you mean {meant}?", INVALID)


def _allocator_keys(text: str) -> list[str]:
    """Keys of `key:value,key:[value,...]`, without what stands in brackets."""
    depth, part, parts = 0, "", []
    for sign in text:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += sign
    return [one.partition(":")[0].strip() for one in [*parts, part] if one.strip()]


def _any(variable: Variable, text: str, where: Situation) -> Iterator[Lint]:
    yield from ()


_CHECKS: dict[str, Callable[[Variable, str, Situation], Iterator[Lint]]] = {
    "int": _integer,
    "level": _level,
    "exact_word": _exact_word,
    "word": _word,
    "strict_word": _strict_word,
    "list": _list,
    "tuning": _tuning,
    "interface": _interfaces,
    "hca": _interfaces,
    "file": _path,
    "path": _path,
    "address": _address,
    "bool": _nccl_bool,
    "torch_bool": _torch_bool,
    "torch_int": _torch_int,
    "gloo_interface": _gloo_interfaces,
    "allocator": _allocator,
    "text": _any,
}
TYPES = frozenset(_CHECKS)
"""The types that the catalogue may use."""
