"""Formatting of ranks, counts, bytes and seconds for all output, and of commands and paths as the user would type them,
so that every hint can be pasted. Independent of evidence and findings.
"""

import json
import os
import re
import shlex
import shutil
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from diagnostics.contract.secrets import masked_text

UNNAMED = -1
"""An unidentified rank: no file names it. Several are distinguished by further negative numbers."""
RUNS_SHOWN = 12  # Maximum number of rank ranges (`0-7`) in a list.
_NOISE_S = 1e-12  # Rounding error of sums of times, in seconds.
COMMUNICATION = re.compile(r"([a-z][a-z_]{2,30}) (\d{1,15}) B (\S{1,60})")
"""Name of dtk's communication regions: `all_reduce 2378752 B dp`."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def clean(value: object) -> str:
    """Return text that is safe to display: line breaks and control sequences escaped, secrets masked."""
    text = masked_text(str(value))
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ranks for lists and tables: `rank 3`, `ranks 0-2, 5`; empty for no ranks."""
    numbers = set(ranks)
    return _plural(numbers) + numbers_text(numbers) if numbers else ""


def ranks_spoken(ranks: Iterable[int]) -> str:
    """Format ranks for sentences: `rank 2`, `ranks 0-6 and 9`, `an unidentified rank`; `no rank` for none."""
    given = set(ranks)
    numbers = {rank for rank in given if rank > UNNAMED}
    parts, more = _parts(numbers, pairs=False)
    parts += [f"{more} more"] if more else []
    if unnamed := len(given) - len(numbers):
        parts.append("an unidentified rank" if unnamed == 1 else f"{unnamed} unidentified ranks")
    return (_plural(numbers) if numbers else "") + joined(parts) if parts else "no rank"


def joined(parts: Iterable[object], word: str = "and") -> str:
    """Join the parts as in `a`, `a and b` or `a, b and c`."""
    *rest, last = [*map(str, parts)] or [""]
    return f"{', '.join(rest)} {word} {last}" if rest else last


def first_of(parts: Collection[object], most: int = 8, separator: str = ", ") -> str:
    """Join the first parts and count the others: `a, b and 3 more`."""
    more = f" and {len(parts) - most:,} more" if len(parts) > most else ""
    return separator.join(map(str, [*parts][:most])) + more


def numbers_text(ranks: Iterable[int]) -> str:
    """Format ranks without the noun: `0-2, 5`."""
    parts, more = _parts(set(ranks), pairs=True)
    return ", ".join([*parts, f"and {more} more"] if more else parts)


class Bytes(int):
    """A number of bytes that format strings render as `3.28 GiB`."""

    def __format__(self, spec: str) -> str:
        return bytes_text(self)


def bytes_text(value: float) -> str:
    """Format bytes: `3.28 GiB`, `12 MiB`, `-1.5 KiB`, `1012 KiB`."""
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or abs(size) >= 1000 else f"{size:.3g} {_UNITS[unit]}"


def region_text(region: str) -> str:
    """Format the name of an open region: `all_gather of 774 KiB over dp_shard` for a collective, others unchanged."""
    call = COMMUNICATION.fullmatch(region)
    return f"{call[1]} of {bytes_text(int(call[2]))} over {call[3]}" if call else region


def seconds_text(value_s: float) -> str:
    """Format seconds: `1.24 s`, `18.3 ms`, `42 us`, `1,240 s`; values below a clock's resolution are 0."""
    if abs(value_s) < _NOISE_S:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        size = value_s / scale
        if abs(size) >= 1:
            return f"{size:,.0f} {unit}" if abs(size) >= 999.5 else f"{size:.3g} {unit}"
    return f"{value_s:.1e} s"


def age(seconds: float) -> str:
    """Format an age: `12s`, `5m`, `3h`, `2d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def figure(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 rank`, `2 ranks`, `1,000 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sentence(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]


def verb(ranks: Iterable[int], singular: str, plural: str) -> str:
    """Select the verb form that agrees with the number of ranks."""
    return singular if len(set(ranks)) == 1 else plural


class Phrase:
    """Part of a sentence as data: a row of a table of texts, and the figures inserted when it is displayed.

    Not a Struct: command help imports this module, which must need only the standard library.
    """

    def __init__(self, row: str, text: str, figures: Mapping[str, Any]) -> None:
        self.row = row
        self.text = text
        self.figures = figures

    def __str__(self) -> str:
        return filled(self.text, self.figures)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phrase) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(str(self))  # Figures may be lists, which are not hashable.


class _Filler(Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        value, first = super().get_field(field_name, args, kwargs)
        return (value() if callable(value) else value), first

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Phrase):
            value = str(value)
        is_texts = isinstance(value, list | tuple) and value and isinstance(value[0], str | Phrase)
        if is_texts and not _COUNTS.search(format_spec):
            joined = (format_spec.removeprefix("^") or ", ").join(map(str, value))
            return sentence(joined) if format_spec.startswith("^") else joined
        if format_spec in _WRITTEN:
            return _WRITTEN[format_spec](value)
        if isinstance(value, Collection) and not isinstance(value, str):
            if format_spec.startswith("#"):
                return counted(len(value), format_spec[1:])
            return verb(value, *format_spec.split("|")) if format_spec else ranks_spoken(value)
        if "|" in format_spec and isinstance(value, int):
            return verb(range(value), *format_spec.split("|"))
        return counted(value, format_spec[1:]) if format_spec.startswith("#") else format(value, format_spec)


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "^": lambda value: sentence(value if isinstance(value, str) else ranks_spoken(value)),
    "n": lambda value: f"{len(value):,}",
    "bytes": lambda value: bytes_text(value),
    "s": lambda value: str(value) if isinstance(value, str) else seconds_text(value),
    "name": lambda value: file_name(value),
    "figure": lambda value: figure(value),
}
_COUNTS = re.compile(r"[#|]|^n$")
"""Format specs that count the elements of a collection, even of texts."""
_FILLER = _Filler()


def filled(text: str, figures: Mapping[str, Any]) -> str:
    """Insert figures into a text, as `str.format` does, with format specs for ranks and units.

    Ranks (any collection of numbers) are formatted for a sentence: `{ranks}` is `ranks 0, 1 and 3`, `{ranks:is|are}`
    the word that agrees with them, `{ranks:n}` their number. `{text:^}` is capitalized, `{count:#call}` is
    `2 calls`, `{size:bytes}` `3.28 GiB`, `{time:s}` `18.3 ms`, `{ms:figure}` `18.3`, `{path:name}` a file without
    its folders. Texts and phrases are joined: `{parts:; }`, `{parts:^; }` capitalized. Methods are called:
    `{call.cited}`.
    """
    return _FILLER.vformat(text, (), figures) if "{" in text else text


def file_name(path: str) -> str:
    """Return the file name without folders, also for Windows paths."""
    return path.replace("\\", "/").rpartition("/")[2]


def _plural(numbers: set[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} "


def _parts(numbers: set[int], *, pairs: bool) -> tuple[list[str], int]:
    """Return ranges of ranks as text (two adjacent ranks as `0-1` if `pairs`), and the number of omitted ranks."""
    runs: list[list[int]] = []
    for rank in sorted(numbers):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = []
    for first, last in runs[:RUNS_SHOWN]:
        if first == last:
            parts.append(str(first))
        else:
            parts += [f"{first}-{last}"] if pairs or last - first > 1 else [str(first), str(last)]
    return parts, sum(last - first + 1 for first, last in runs[RUNS_SHOWN:])


_PLAIN = re.compile(r"(?!(?i:null|true|false|[+-]?(inf|nan|[0-9][0-9_.e+-]*))$)[A-Za-z0-9_./+@-]+")
"""Values that Hydra's grammar accepts without quotes and parses as strings."""


def typed(path: Path) -> Path:
    """Return the path as the user would type it, relative if it is below the working directory."""
    with suppress(OSError, ValueError):  # Not below it, or the working directory no longer exists.
        return path.relative_to(Path.cwd())
    return path


def command(*arguments: object, name: str = "dtk") -> str:
    """Return a command line for a shell, quoted where necessary; the package of `name` also supports `python -m`."""
    return " ".join([_program(name), *(shlex.quote(str(argument)) for argument in arguments)])


def override(key: str, value: object) -> str:
    """Return `key=value` for `dtk run`, quoted for Hydra's grammar if necessary."""
    text = str(value)
    return f"{key}={text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)}"


def _program(name: str) -> str:
    """Return the bare name if PATH finds this environment's script, else its path, else `python -m NAME`."""
    schemes = [sysconfig.get_default_scheme()]
    if site.ENABLE_USER_SITE:
        schemes.append(sysconfig.get_preferred_scheme("user"))
    folders = [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    scripts = [script for folder in folders if (script := folder / name).is_file()]
    on_path, python = shutil.which(name), shutil.which("python")
    with suppress(OSError):
        if on_path is not None and any(script.samefile(on_path) for script in scripts):
            return name
    if scripts:
        return shlex.quote(_as_program(scripts[0]))
    if not sys.executable:
        return f"python -m {name}"
    with suppress(OSError):  # Compare the folders, as links point outside a virtual environment.
        if python is not None and Path(python).parent.samefile(Path(sys.executable).parent):
            return f"python -m {name}"
    return f"{shlex.quote(_as_program(Path(sys.executable)))} -m {name}"


def _as_program(path: Path) -> str:
    text = str(typed(path))
    return text if os.sep in text else f".{os.sep}{text}"
