"""The catalogue of variables that NCCL, torch.distributed, the CUDA allocator and gloo read, as typed values."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from diagnostics.contract.files import read_table

DATA = Path(__file__).parent / "data"

Version = tuple[int, ...]
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9})*", re.ASCII)


def version_text(version: Version) -> str:
    """Format (2, 20, 5) as `2.20.5`."""
    return ".".join(map(str, version))


class Variable(Struct, frozen=True):
    """One variable that a current release reads."""

    name: str
    type: str = "int"
    """`int`, `level`, `interface`, ...: how the value is parsed; the types are in `values.PARSERS`."""
    since: Version | None = None
    """First public NCCL release that reads it; None for torch and gloo."""
    default: str | int | None = None
    """`auto`: chosen at run time; None: unset."""
    values: tuple[Any, ...] = ()
    """Allowed values; empty = not a short list."""
    low: int | None = None
    high: int | None = None
    deprecated: Version | None = None
    """Release from which another name is preferred; this one is still read."""
    use: str = ""
    """The preferred name."""


class Removed(Struct, frozen=True):
    """A name that no current release reads."""

    last: Version
    """Last public release that read it."""
    use: str
    """The name that replaced it, or empty."""


class Catalogue(Struct, frozen=True):
    """Everything known about the names of variables."""

    newest: Version
    """The NCCL release that the catalogue describes."""
    nccl: Mapping[str, Variable]
    torch: Mapping[str, Variable]
    """TORCH_*, PYTORCH_* and GLOO_*."""
    removed: Mapping[str, Removed]
    legacy: Mapping[str, str]
    """NCCL_* names from torch before 2.2 that torch still reads, with a warning -> current name."""
    removed_legacy: Mapping[str, str]
    """The same for names that torch no longer reads."""
    foreign: frozenset[str]
    """Names that images, builds, tests and plugins read; they are never reported."""
    foreign_prefixes: tuple[str, ...]
    dead: Mapping[str, str]
    """Names in vendors' files that no public NCCL ever read -> a sentence about each."""
    typos: Mapping[str, str]
    """Frequent misspellings -> the intended name."""
    synonyms: Mapping[str, str]
    """Names of torch that take precedence -> their older names, which it still reads without a warning."""
    advice: Mapping[str, str]
    """Names of settings that do not exist -> what to do instead."""
    allocator_keys: frozenset[str]
    """Keys within PYTORCH_ALLOC_CONF."""

    def find(self, name: str) -> Variable | None:
        """Return the variable with this exact name."""
        return self.nccl.get(name) or self.torch.get(name)


def leading_version(text: str) -> Version:
    """Return (2, 20, 5) for `2.20.5+cuda12.4`; () for a text that does not begin with a number."""
    match = _VERSION.match(text)
    return tuple(map(int, match[0].split("."))) if match else ()


@functools.cache
def catalogue() -> Catalogue:
    """Load the catalogue, which takes about 10 ms, once per process."""
    nccl, names, torch = (read_table(DATA / file) for file in ("nccl.yaml", "names.yaml", "torch.yaml"))
    return Catalogue(
        newest=leading_version(nccl["newest"]),
        nccl={name: _variable(name, entry) for name, entry in nccl["variables"].items()},
        torch={name: _variable(name, entry) for name, entry in torch["variables"].items()},
        removed={name: Removed(leading_version(e["last"]), e.get("use", "")) for name, e in names["removed"].items()},
        legacy=_older(torch["variables"], "legacy"),
        removed_legacy=_older(torch["variables"], "removed_legacy"),
        foreign=frozenset(names["foreign"]),
        foreign_prefixes=tuple(names["foreign_prefixes"]),
        dead=names["dead"],
        typos=names["typos"],
        synonyms=names["synonyms"],
        advice=names["advice"],
        allocator_keys=frozenset(torch["allocator_keys"]),
    )


def _variable(name: str, entry: dict[str, Any]) -> Variable:
    low, high = entry.get("range", (None, None))
    releases: dict[str, Any] = {key: leading_version(entry[key]) for key in ("since", "deprecated") if key in entry}
    as_it_is: dict[str, Any] = {key: entry[key] for key in ("type", "default", "use") if key in entry}
    return Variable(name, values=tuple(entry.get("values", ())), low=low, high=high, **as_it_is, **releases)


def _older(variables: dict[str, dict[str, Any]], key: str) -> dict[str, str]:
    return {old: name for name, entry in variables.items() for old in entry.get(key, ())}
