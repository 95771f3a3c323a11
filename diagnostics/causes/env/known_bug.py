"""A bug of NCCL, torch, the driver or the kernel that is documented in their issue trackers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.environment.catalogue import Version, leading_version, version_text
from diagnostics.analysis.environment.recorded import recorded
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import read_table
from diagnostics.contract.findings import LIKELY, EvidenceItem, Finding, Remedy, Text, formatted
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.model import Evidence

_TEXTS = Texts(__file__)
_NAMES = {"nccl": "NCCL", "torch": "torch", "driver": "the driver", "kernel": "Linux"}
_HANG = frozenset({"watchdog_timeout", "watchdog_status", "gloo_timeout", "monitor_stuck", "desync_report"})


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

    def has(self, version: Version) -> bool:
        """Return whether a version of the component is affected."""
        return version >= self.since and (not self.before or version < self.before)


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Load the table, once per process."""
    bugs = []
    for row in read_table(Path(__file__).with_name("_known_bugs.yaml")):
        since, before = (leading_version(side) if side else () for side in row.pop("versions").split("-"))
        name, _, value = row.pop("variable", "").partition("=")
        bugs.append(KnownBug(since=since, before=before, variable=(name, value), **row))
    return tuple(bugs)


def bug_in(text: str) -> KnownBug | None:
    """Return the bug whose message a line contains; None if it contains none."""
    return next((bug for bug in known_bugs() if bug.text and re.search(bug.text, text)), None)


def possible(versions: Mapping[str, Version], variables: Mapping[str, str], arch: str) -> Iterable[KnownBug]:
    """Yield bugs without a message of their own that match a job's versions, variables and processor.

    Unknown components have no version, and an unknown processor is empty.
    """
    for bug in known_bugs():
        name, value = bug.variable
        given = variables.get(name, "")
        default = "0" if name.endswith("DISABLE") else "1"
        fits = not name or (given == value if value else given in ("", default))
        is_affected = bug.component in versions and bug.has(versions[bug.component])
        if is_affected and fits and not bug.text and bug.arch in ("", arch):
            yield bug


class Seen(Struct, frozen=True):
    """Known bugs that match a job."""

    confirmed: tuple[tuple[KnownBug, EvidenceItem], ...]
    possible: tuple[KnownBug, ...]
    """Bugs that match the versions, the variables and the symptom, but cannot be distinguished from other faults."""
    versions: dict[str, Version]


def seen(evidence: Evidence) -> Seen:
    """Look up the versions and messages of a job in the table."""
    versions = dict(_versions(evidence))
    variables = {name: text for own in recorded(evidence).variables.values() for name, text in own.items()}
    run = evidence.run
    machine = run.manifest.get("hardware") if run is not None else None
    arch = str(machine.get("machine", "")) if isinstance(machine, dict) else ""
    kinds = {fact.kind for fact in evidence.facts}
    symptoms = {"hang"} if kinds & _HANG else {"memory"} if "cuda_oom" in kinds else set()
    by_bug: dict[KnownBug, EvidenceItem] = {}
    for fact in evidence.facts:
        if bug := bug_in(fact.text):
            by_bug.setdefault(bug, fact.quoted())
    for error in evidence.errors:
        if bug := bug_in(error.message):
            by_bug.setdefault(bug, EvidenceItem("error", error.file, error.message[:200], error.line or None))
    fits = tuple(bug for bug in possible(versions, variables, arch) if bug.shows in symptoms)
    return Seen(tuple(by_bug.items()), fits, versions)


def _versions(evidence: Evidence) -> Iterator[tuple[str, Version]]:
    """Yield (component, version), first from the manifest and then from the logs."""
    if nccl := recorded(evidence).nccl_version:
        yield "nccl", nccl
    stated = list[tuple[str, str]]()
    packages = evidence.run.manifest.get("versions") if evidence.run is not None else None
    stated += [("torch", str(packages.get("torch", "")))] if isinstance(packages, dict) else []
    for fact in evidence.facts:
        if fact.kind == "library_version":
            stated.append((str(fact.fields["library"]).lower(), str(fact.fields["version"])))
        elif fact.kind == "dist_backend_error" and "version" in fact.fields:
            stated.append(("nccl", str(fact.fields["version"])))
    yield from ((component, number) for component, text in stated if (number := leading_version(text)))


def described(bug: KnownBug, version: Version | None) -> Phrase:
    """Return `NCCL 2.29.2: collectives hang ... (pytorch/pytorch#174338)`."""
    number = f" {version_text(version)}" if version and not bug.text else ""
    return _TEXTS.phrase("bug", name=_NAMES[bug.component], number=number, bug=bug)


def _words(finding: Finding, bugs: tuple[KnownBug, ...], versions: dict[str, Version]) -> Text:
    texts = [described(bug, versions.get(bug.component)) for bug in bugs[:2]]
    if finding.status == "undecided":
        return _TEXTS(finding, "possible", bugs=texts, count=len(bugs), fix=bugs[0].fix)
    fixes = tuple(Remedy("environment", bug.fix, bug.source) for bug in bugs)
    return replace(_TEXTS(finding, "confirmed", bugs=texts, count=len(bugs)), remedies=fixes)


def decide(case: Seen) -> Finding:
    """Confirm a bug by its message. A bug that only matches the version is named but not confirmed."""
    if case.confirmed:
        facts = formatted(_words, bugs=tuple(bug for bug, _ in case.confirmed), versions=case.versions)
        items = tuple(item for _, item in case.confirmed)
        return Finding(status="confirmed", facts=facts, confidence=LIKELY, evidence=items)
    if case.possible:
        facts = formatted(_words, bugs=case.possible, versions=case.versions)
        return Finding(status="undecided", facts=facts, confidence=0.0)
    named = [f"{_NAMES.get(name, name)} {'.'.join(map(str, version))}" for name, version in case.versions.items()]
    return _TEXTS.ruled_out(named=named) if named else _TEXTS.undecided()


CAUSE = declared(__file__, seen, decide)
