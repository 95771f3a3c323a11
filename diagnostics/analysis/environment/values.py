"""Parses values of variables and the file nccl.conf in the way NCCL, torch and gloo do. Knows types, not names.

NCCL rejects almost nothing: it parses a number by C's strtoll with base 0 and ignores the rest, so `true` is 0, `1k` is
1 and `010` is 8. torch raises an error for a value that it does not know.
"""

import re

from msgspec import Struct

from diagnostics.analysis.environment.catalogue import catalogue

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Distances within a node, nearest first, as NCCL spells them; compared with case."""
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""Meaning of the numbers 0 to 4; larger ones are SYS."""
TRUE_WORDS = frozenset({"y", "yes", "1", "t", "true"})
FALSE_WORDS = frozenset({"n", "no", "0", "f", "false"})
"""Words that torch accepts as a bool, in upper or lower case."""
FUNCTIONS = frozenset({"broadcast", "reduce", "allgather", "reducescatter", "allreduce"})
"""Functions allowed before the colon in NCCL_ALGO and NCCL_PROTO, in upper or lower case."""
MAX_HCAS = 32  # NCCL's MAX_IB_DEVS (src/transport/net_ib.cc).
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_STOI = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")


class Number(Struct, frozen=True):
    """A number as strtoll parses it."""

    value: int
    """0 if the text does not begin with a number."""
    digits: bool
    """Whether the text begins with a number."""
    rest: str
    """The rest of the text, which is ignored."""
    octal: bool
    """Whether a leading 0 makes it an octal number whose value differs from the decimal one."""


class Names(Struct, frozen=True):
    """A list of network interfaces or HCAs."""

    exclude: bool
    exact: bool
    """False: each name is a prefix, so `mlx5_1` also means mlx5_10 to mlx5_19."""
    names: tuple[str, ...]
    """Names of HCAs are without the port."""

    def selects(self, name: str) -> bool:
        """Whether an interface of this name may be used."""
        is_listed = name in self.names if self.exact else name.startswith(self.names)
        return is_listed != self.exclude


def number(text: str) -> Number:
    """Parse a number like C's strtoll(text, NULL, 0), clamped to 64 bits."""
    match = _NUMBER.match(text)
    if match is None:
        return Number(0, False, text, False)
    sign, digits = match.groups()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    value = int(digits, 8) if octal else int(digits, 0)
    value = max(-(2**63), min(2**63 - 1, -value if sign == "-" else value))
    return Number(value, True, text[match.end() :], octal and value not in range(-7, 8))


def level(text: str) -> str | None:
    """Return the distance level that NCCL reads from the text, or None if NCCL silently ignores the text."""
    if text in LEVELS:
        return text
    if text[:1].isascii() and text[:1].isdigit():
        return OLD_LEVELS[max(0, min(number(text).value, len(OLD_LEVELS) - 1))]
    return None


def names(text: str, hca: bool = False) -> Names:
    """Parse `eth0,eth1`, `=eth0`, `^docker,lo` or `^=lo`; `:port` and what follows is removed from names of HCAs."""
    exclude = text.startswith("^")
    exact = text.removeprefix("^").startswith("=")
    parts = [part.split(":")[0] if hca else part for part in text[exclude + exact :].split(",")]
    return Names(exclude, exact, tuple(filter(None, parts)))


def words(text: str) -> list[str]:
    """Return the members of a comma-separated list without the `^` that negates it."""
    return [word for word in text.removeprefix("^").split(",") if word]


def tuning(text: str) -> list[str]:
    """Return the algorithms or protocols in `Ring,Tree`, `^NVLS` or (since 2.24) `allreduce:Ring;broadcast:Tree`."""
    return [word for part in text.split(";") for word in words(part.rpartition(":")[2])]


def prefixes(text: str) -> list[str]:
    """Return the functions in `allreduce:Ring;broadcast:Tree`."""
    return [part.partition(":")[0] for part in text.split(";") if ":" in part]


def torch_bool(text: str) -> bool | None:
    """Parse a bool as torch does; None if torch raises."""
    word = text.lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


def torch_int(text: str) -> int | None:
    """Parse an integer as C++'s std::stoi does; None if torch raises."""
    match = _STOI.match(text)
    return int(match.group()) if match else None


class ConfFile(Struct, frozen=True):
    """The content of an nccl.conf."""

    variables: dict[str, str]
    """The first of several values counts. The environment of the process takes precedence over the file."""
    oddities: tuple[tuple[int, str, str], ...]
    """(line number from 1, the rule of the linter that the line breaks, the text concerned)."""
    lines: dict[str, int]
    """Variable -> line number."""


def parse_conf(text: str) -> ConfFile:
    """Parse lines `NAME=value` as NCCL does: nothing is trimmed, quotes and `export` have no meaning, `#` only begins a
    line. Spaces and carriage returns stay in the value; for known names, `rules_values` reports them.
    """
    variables: dict[str, str] = {}
    oddities: list[tuple[int, str, str]] = []
    lines: dict[str, int] = {}
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip() or content.startswith("#"):
            continue
        name, equals, value = content.partition("=")
        if not equals:
            oddities.append((line, "file_no_value", content.strip()[:60]))
            continue
        if name != name.strip() or name.startswith("export "):
            oddities.append((line, "file_name", name))
        if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
            oddities.append((line, "file_quotes", value))
        elif value != value.strip() and catalogue().find(name) is None:
            oddities.append((line, "file_spaces", value))
        if "#" in value:
            oddities.append((line, "file_comment", value))
        variables.setdefault(name, value)
        lines.setdefault(name, line)
    return ConfFile(variables, tuple(oddities), lines)
