"""A bug of NCCL, torch, the driver or the kernel that is documented in their issue trackers."""

from collections.abc import Iterator

from msgspec import Struct

from diagnostics.analysis.environment.catalogue import Version, leading_version, version_text
from diagnostics.analysis.environment.job import recorded
from diagnostics.analysis.environment.known_bugs import NAMES, Installed, KnownBug, bug_in
from diagnostics.analysis.environment.situation import gpu_names
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.symptoms.state import ended_by, is_warning
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import LIKELY, EvidenceItem, Finding, Remedy, confirmed
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.model import Evidence, shortened

_TEXTS = Texts(__file__)
_HANG = frozenset({"watchdog_timeout", "watchdog_status", "gloo_timeout", "monitor_stuck", "desync_report"})


class Seen(Struct, frozen=True):
    """Known bugs that match a job."""

    confirmed: tuple[tuple[KnownBug, EvidenceItem], ...]
    possible: tuple[KnownBug, ...]
    """Bugs of which a warning speaks that ended nothing; and those that match the versions, the variables and the
    symptom, but cannot be distinguished from other faults."""
    versions: dict[str, Version]


def seen(stall: Stall) -> Seen:
    """Look up the versions and messages of a job in the table."""
    evidence, ended = stall.job.evidence, ended_by(stall.job)
    record = recorded(evidence)
    versions = dict(_versions(evidence, record.nccl_version))
    variables = {name: text for own in record.variables.values() for name, text in own.items()}
    installed = Installed(versions, str(record.hardware.get("machine", "")), gpu_names(record.hardware))
    kinds = {fact.kind for fact in evidence.facts}
    symptoms = {"hang"} if kinds & _HANG else {"memory"} if "cuda_oom" in kinds else set()
    by_bug: dict[KnownBug, EvidenceItem] = {}
    warned: dict[KnownBug, None] = {}
    for fact in evidence.facts:
        if bug := bug_in(fact.text):
            had = bug.before and bug.has(versions.get(bug.component, ()))
            if had or not is_warning(fact.text) or ended(fact.file, fact.line):
                by_bug.setdefault(bug, fact.quoted())
            else:
                warned[bug] = None
    for error in evidence.errors:
        if bug := bug_in(error.message):
            by_bug.setdefault(bug, EvidenceItem("error", error.file, shortened(error.message), error.line or None))
    fits = (bug for bug in installed.possible(variables) if bug.shows in symptoms)
    return Seen(tuple(by_bug.items()), (*warned, *fits), versions)


def _versions(evidence: Evidence, nccl: Version | None) -> Iterator[tuple[str, Version]]:
    """Yield (component, version), first from the manifest and then from the logs."""
    if nccl:
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
    return _TEXTS.phrase("bug", name=NAMES[bug.component], number=number, bug=bug)


def decide(stall: Stall) -> Finding:
    """Confirm a bug by its message. One of which only a warning or the version speaks is named but not confirmed."""
    case = seen(stall)
    bugs = [bug for bug, _ in case.confirmed] or case.possible
    texts = [described(bug, case.versions.get(bug.component)) for bug in bugs[:2]]
    if case.confirmed:
        fixes = [Remedy("environment", bug.fix, bug.source) for bug in bugs]
        facts = _TEXTS.facts("confirmed", bugs=texts, count=len(bugs), fixes=fixes)
        items = tuple(item for _, item in case.confirmed)
        return confirmed(facts=facts, confidence=LIKELY, evidence=items)
    if bugs:
        return _TEXTS.undecided("possible", bugs=texts, count=len(bugs), fix=bugs[0].fix)
    named = [f"{NAMES.get(name, name)} {'.'.join(map(str, version))}" for name, version in case.versions.items()]
    return _TEXTS.ruled_out(named=named) if named else _TEXTS.undecided()


CAUSE = declared(__file__, explain, decide)
