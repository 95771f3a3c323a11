"""Faults of NCCL, torch, the driver and the kernel that their trackers describe, with versions and sources."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.environment.catalogue import Version, load_data, version


@dataclass(frozen=True, slots=True)
class KnownBug:
    """One fault."""

    component: Literal["nccl", "torch", "driver", "kernel"]
    since: Version
    """First version that is known to have it; () = any."""
    before: Version
    """First version without it; () = not known."""
    shows: Literal["hang", "crash", "memory", "wrong"]
    """How it shows: the job stands still, ends, needs more memory, or computes something wrong in silence."""
    what: str
    fix: str
    source: str
    text: str = ""
    """A pattern of what is printed when it strikes; empty = nothing that would tell it from other faults."""
    variable: tuple[str, str] = ("", "")
    """A variable, and the value that it takes; an empty value = as it is by default."""
    arch: str = ""
    """Only on this processor (`aarch64`)."""

    def has(self, version: Version) -> bool:
        """Whether a version of the component has it."""
        return version >= self.since and (not self.before or version < self.before)


@functools.cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Load the table, once per process."""
    bugs = []
    for row in load_data("known_bugs.yaml"):
        since, before = (version(side) if side else () for side in row.pop("versions").split("-"))
        name, _, value = row.pop("variable", "").partition("=")
        bugs.append(KnownBug(since=since, before=before, variable=(name, value), **row))
    return tuple(bugs)


def struck(text: str) -> KnownBug | None:
    """Return the fault whose own text a line holds."""
    return next((bug for bug in known_bugs() if bug.text and re.search(bug.text, text)), None)


def possible(versions: Mapping[str, Version], variables: Mapping[str, str], arch: str) -> Iterable[KnownBug]:
    """Yield the faults that a job may meet by its versions, variables and processor; those that print a text do so.

    Args:
        versions: component -> version; components that are not known are left out.
        variables: of all ranks.
        arch: of the processor; empty = not known.
    """
    for bug in known_bugs():
        name, value = bug.variable
        given = variables.get(name, "")
        default = "0" if name.endswith("DISABLE") else "1"
        fits = not name or (given == value if value else given in ("", default))
        here = bug.component in versions and bug.has(versions[bug.component])
        if here and fits and not bug.text and bug.arch in ("", arch):
            yield bug
