"""Known bugs of NCCL, torch, the driver and the kernel: those that versions, hardware and variables meet or avoid."""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Literal

from msgspec import Struct

from diagnostics.analysis.environment.catalogue import DATA, Version, leading_version, version_text
from diagnostics.analysis.environment.situation import Lint, Severity, lint_of
from diagnostics.analysis.environment.values import number
from diagnostics.contract.files import read_table

NAMES = {"nccl": "NCCL", "torch": "torch", "driver": "the driver", "kernel": "Linux"}


class KnownBug(Struct, frozen=True):
    """A known bug."""

    component: Literal["nccl", "torch", "driver", "kernel"]
    since: Version
    """First affected version; () if all earlier versions are affected."""
    before: Version
    """First version with the fix; () if not known."""
    shows: Literal["hang", "crash", "memory", "wrong"]
    """Symptom: the job hangs, crashes, needs more memory, or silently computes wrong results."""
    what: str
    fix: str
    source: str
    text: str = ""
    """Pattern of the message that the bug prints; empty if no message distinguishes it from other faults."""
    variable: tuple[str, str] = ("", "")
    """Name and value of a variable that triggers the bug; an empty value means the default."""
    arch: str = ""
    """The only affected processor architecture (`aarch64`); empty if all are."""
    gpu: str = ""
    """Pattern of the names of the only affected GPUs; empty if it is not known to depend on the GPU."""

    def has(self, version: Version) -> bool:
        """Return whether a version of the component is affected."""
        return version >= self.since and (not self.before or version < self.before)

    def is_met_by(self, variables: Mapping[str, str]) -> bool:
        """Return whether these variables do not avoid the bug; switching a default off avoids the default's bugs."""
        name, value = self.variable
        given = variables.get(name, "")
        return given == value if value or not given else bool(number(given).value) != name.endswith("DISABLE")


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Load the table, once per process."""
    bugs = []
    for row in read_table(DATA / "known_bugs.yaml"):
        since, before = (leading_version(side) if side else () for side in row.pop("versions").split("-"))
        name, _, value = row.pop("variable", "").partition("=")
        bugs.append(KnownBug(since=since, before=before, variable=(name, value), **row))
    return tuple(bugs)


def bug_in(text: str) -> KnownBug | None:
    """Return the bug whose message a line contains; None if it contains none."""
    return next((bug for bug in known_bugs() if bug.text and re.search(bug.text, text)), None)


class Installed(Struct, frozen=True):
    """Software and hardware that bugs depend on."""

    versions: Mapping[str, Version]
    """Component -> version; absent or () if unknown."""
    arch: str = ""
    gpus: Collection[str] = ()
    """Names of GPUs, as NVML gives them."""

    def bugs(self) -> Iterator[KnownBug]:
        """Yield the bugs of these versions, without those of one processor or GPU unless it is known to be here."""
        for bug in known_bugs():
            version = self.versions.get(bug.component)
            fits = not bug.gpu or any(re.search(bug.gpu, name) for name in self.gpus)
            if version and bug.has(version) and fits and bug.arch in ("", self.arch):
                yield bug

    def possible(self, variables: Mapping[str, str]) -> Iterator[KnownBug]:
        """Yield the bugs without a message of their own that the variables meet."""
        return (bug for bug in self.bugs() if not bug.text and bug.is_met_by(variables))

    def lints(self, variables: Mapping[str, str]) -> Iterator[Lint]:
        """Yield each variable whose value meets a bug, whose default does, or that avoids one."""
        for bug in self.bugs():
            (name, value), is_met = bug.variable, bug.is_met_by(variables)
            given = bool(variables.get(name))
            if name and (is_met or (given and not value)):
                rule = "bug_avoided" if not is_met else "bug_met" if given else "bug_of_default"
                version = f"{NAMES[bug.component]} {version_text(self.versions[bug.component])}"
                how: Severity = "warning" if rule == "bug_met" else "note"
                yield lint_of(how, name, rule, version=version, what=bug.what, fix=bug.fix, source=bug.source)
