"""Decides the causes that lie in environment variables: the linter over every rank's, ranks against each other,
and what NCCL and gloo said about interfaces.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import CAUSES, lint
from diagnostics.analysis.environment.recorded import ALL, CONFIGURATION, Gathered, Source, gathered, interfaces
from diagnostics.analysis.environment.situation import Lint
from diagnostics.contract.findings import Detection, EvidenceItem, Finding, Remedy
from diagnostics.evidence.model import Evidence, LogFact

CONFIDENCE = {"error": 0.95, "warning": 0.7, "note": 0.4}
"""A note is never a root cause (that begins at 0.5)."""
NAMED = 3
"""Variables that a summary names; the rest are counted."""
NCCL_ONLY = frozenset({"env.ib_disabled", "env.p2p_disabled"})
"""Causes that only matter where NCCL moves the data."""
ALONE = frozenset({"env.unknown_variable", "env.deprecated_variable"})
"""Causes that need every variable: NCCL's log repeats only the names that it knows."""
MISSING = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET (dtk's runs record the environment by themselves)"
PER_RANK = re.compile(r"_FILE$|IFNAME$|IB_HCA$|HOSTID$|DEBUG|CPUSET|AFFINITY|VISIBLE_DEVICES|GID_INDEX|RAS_ADDR|_RANK$")
"""Variables that may well differ between ranks."""
LOCAL_INTERFACE = re.compile(r"^(?:docker|veth|br-|virbr|cni|flannel|cali|tunl|podman|lxc|lo$)")
"""Names of interfaces that do not leave the node."""

Seen = tuple[Lint, tuple[int, ...]]
"""A lint, and the ranks that have it; () = all."""


class EnvironmentDetector:
    """Variables of NCCL, torch and gloo."""

    name = "environment"
    causes: tuple[str, ...] = CAUSES

    def detect(self, evidence: Evidence) -> Detection:
        """Decide every cause of `causes`."""
        facts = gathered(evidence)
        seen = [*_linted(facts), *_differences(facts)]
        by_cause: dict[str, list[Seen]] = defaultdict(list)
        for one in seen:
            by_cause[one[0].cause_id].append(one)
        findings: list[Finding] = []
        for cause in self.causes:
            found = by_cause[cause]
            told = _from_logs(evidence, facts) if cause == "env.wrong_interface" else None
            if cause in NCCL_ONLY and facts.backend == "gloo":
                findings.append(_not_used(cause))
            elif found or told is not None:
                findings += [told] if told is not None else []
                findings += [_confirmed(cause, found, facts)] if found else []
            else:
                findings.append(_not_found(cause, facts))
        return Detection(findings)


def _linted(facts: Gathered) -> list[Seen]:
    """Each distinct set of variables is looked at once, however many ranks have it."""
    alike: dict[frozenset[tuple[str, str]], list[int]] = defaultdict(list)
    for rank, variables in facts.variables.items():
        alike[frozenset(variables.items())].append(rank)
    ranks_of: dict[Lint, set[int]] = defaultdict(set)
    for items, ranks in alike.items():
        for one in lint(dict(sorted(items)), facts.nccl_version, facts.nnodes, facts.hardware):
            ranks_of[one].update(ranks)
    return [(one, () if ALL in ranks else tuple(sorted(ranks))) for one, ranks in ranks_of.items()]


def _differences(facts: Gathered) -> list[Seen]:
    """Variables that must be alike on all ranks and are not; the smallest share of ranks is named, a tie is all."""
    found: list[Seen] = []
    texts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, variables in sorted(facts.variables.items()):
        for name, text in variables.items():
            if rank != ALL and not PER_RANK.search(name) and catalogue().find(name) is not None:
                texts[name][text].append(rank)
    for name, by_text in sorted(texts.items()):
        if len(by_text) < 2:
            continue
        most = max(len(ranks) for ranks in by_text.values())
        tie = sum(len(ranks) == most for ranks in by_text.values()) > 1
        odd = sorted(r for ranks in by_text.values() if tie or len(ranks) < most for r in ranks)
        shown = "; ".join(f"{text!r} on {_ranks(tuple(ranks))}" for text, ranks in list(by_text.items())[:NAMED])
        one = Lint("error", name, f"ranks disagree: {shown}", "give all ranks the same value", "env.contradiction")
        found.append((one, tuple(odd)))
    return found


def _confirmed(cause: str, seen: list[Seen], facts: Gathered) -> Finding:
    """One finding for all variables with this cause, the worst first."""
    ordered = sorted(seen, key=lambda one: (-CONFIDENCE[one[0].severity], one[0].variable, one[0].message))
    parts = []
    for one, ranks in ordered[:NAMED]:
        text = _text(facts, one.variable, ranks)
        where = f" (on {_ranks(ranks)})" if ranks else ""
        fix = "" if one.message.endswith("?") else f"; {one.fix}"
        parts.append(f"{one.variable}{'=' + text if text else ''}{where}: {one.message}{fix}")
    more = f" And {len(ordered) - NAMED} more." if len(ordered) > NAMED else ""
    everywhere = any(not ranks for _, ranks in ordered)
    return Finding(
        cause=cause,
        status="confirmed",
        summary=". ".join(parts).replace("?.", "?") + ("" if parts[-1].endswith("?") else ".") + more,
        confidence=max(CONFIDENCE[one.severity] for one, _ in ordered),
        ranks=() if everywhere else tuple(sorted({rank for _, ranks in ordered for rank in ranks})),
        evidence=tuple(_item(one, ranks, facts) for one, ranks in ordered),
        remedies=tuple(_remedy(one, ranks, facts) for one, ranks in ordered),
        measured=f"{len(ordered)} of {_count(facts)} variables",
    )


def _item(one: Lint, ranks: tuple[int, ...], facts: Gathered) -> EvidenceItem:
    source = _source(facts, one.variable, ranks)
    return EvidenceItem("environment", source.file, f"{one.variable}={_text(facts, one.variable, ranks)}", source.line)


def _remedy(one: Lint, ranks: tuple[int, ...], facts: Gathered) -> Remedy:
    """A variable of `nccl.variables` is mended there, any other where it was exported."""
    change = _change(one, _text(facts, one.variable, ranks))
    if change is None:
        return Remedy("environment", f"{one.variable}: {one.fix}", one.message)
    gone, name, text = change
    if _source(facts, one.variable, ()).file == CONFIGURATION:
        parts = [f"~nccl.variables.{gone}"] if gone else []
        parts += [f"nccl.variables.{name}={_hydra(text)}"] if name else []
        return Remedy("override", shlex.join(parts), one.message)
    parts = [f"unset {gone}"] if gone else []
    parts += [f"export {name}={shlex.quote(text)}"] if name else []
    return Remedy("environment", "; ".join(parts), one.message)


def _change(one: Lint, text: str) -> tuple[str, str, str] | None:
    """(name to unset, name to set, its text), of a fix that leaves nothing to decide."""
    if match := re.fullmatch(r"rename it to (\w+)|use ([A-Z]+_\w+)", one.fix):
        return one.variable, match[1] or match[2], text
    if match := re.fullmatch(r"(\w+)=([^<>\s]+)", one.fix):
        return "", match[1], match[2]
    if match := re.fullmatch(r"unset (\w+)", one.fix):
        return (one.variable if match[1] == "it" else match[1]), "", ""
    return None


def _hydra(text: str) -> str:
    """A text as a value of an override, in quotes where the grammar needs them."""
    return text if re.fullmatch(r"[\w.]+", text) else "'" + text.replace("'", "\\'") + "'"


def _source(facts: Gathered, name: str, ranks: tuple[int, ...]) -> Source:
    for rank in (*ranks[:1], ALL):
        if (rank, name) in facts.sources:
            return facts.sources[rank, name]
    return Source("environment", None)


def _text(facts: Gathered, name: str, ranks: tuple[int, ...]) -> str:
    for rank in (*ranks[:1], ALL):
        if name in facts.variables.get(rank, {}):
            return facts.variables[rank][name][:80]
    return ""


def _not_used(cause: str) -> Finding:
    summary = "The ranks talk through gloo, which these settings of NCCL do not concern."
    return Finding(cause=cause, status="ruled_out", summary=summary, measured="backend gloo")


def _not_found(cause: str, facts: Gathered) -> Finding:
    """Ruled out by what is known, or undecided for what is not."""
    count = _count(facts)
    known = facts.complete or (count > 0 and cause not in ALONE)
    lacking = _lacking(cause, facts)
    if known and not lacking:
        summary = (
            f"None of the {count} recorded variables is at fault." if count else "No variable of this kind is set."
        )
        return Finding(cause=cause, status="ruled_out", summary=summary, measured=f"0 of {count} variables")
    what = lacking or "no record of the environment variables"
    summary = f"Not decided: there is {what}."
    return Finding(cause=cause, status="undecided", summary=summary, missing=MISSING)


def _lacking(cause: str, facts: Gathered) -> str:
    """The fact of the machine without which the cause cannot be ruled out."""
    variables = facts.variables.get(ALL, {})
    if cause == "env.ib_disabled" and any(variables.get(name) for name in ("NCCL_IB_DISABLE", "NCCL_NET")):
        if facts.nnodes is None:
            return "no record of how many nodes the job had"
        if facts.nnodes > 1 and "infiniband" not in facts.hardware:
            return "no list of the node's RDMA devices"
    named = any(variables.get(name) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    if cause == "env.wrong_interface" and named and "interfaces" not in facts.hardware:
        return "no list of the node's network interfaces"
    return ""


def _count(facts: Gathered) -> int:
    """Distinct names of variables that were looked at."""
    prefixes = ("NCCL_", "TORCH_", "GLOO_", "PYTORCH_")
    return len({name for variables in facts.variables.values() for name in variables if name.startswith(prefixes)})


def _from_logs(evidence: Evidence, facts: Gathered) -> Finding | None:
    """An interface that was refused, or that cannot reach the other nodes."""
    refused = [fact for fact in evidence.facts if fact.kind == "interface_missing"]
    none = [f for f in evidence.facts if f.kind == "nccl_warn" and "no socket interface found" in f.text]
    if refused or none:
        fact = (refused or none)[0]
        name = fact.fields.get("name")
        what = f"has no interface or address {name!r}" if name else "found no interface that it may use"
        return _interface_finding([*refused, *none], f"The node {what}, so the ranks cannot meet", 0.97)
    chosen = [f for f in evidence.facts if f.kind == "nccl_bootstrap" and _local(str(f.fields.get("interface")))]
    if chosen and (facts.nnodes or 0) > 1:
        name = chosen[0].fields["interface"]
        summary = f"NCCL meets over {name}, which does not leave the node, and the job has {facts.nnodes} nodes"
        return _interface_finding(chosen, summary, 0.9)
    sockets = [f for f in evidence.facts if f.kind == "nccl_socket" and _all_local(str(f.fields.get("interfaces")))]
    failed = [f for f in evidence.facts if f.kind == "nccl_connect"]
    if (chosen or sockets) and failed:
        summary = "NCCL chose an interface that does not leave the node, and then could not connect"
        return _interface_finding([*chosen, *sockets, *failed[:1]], summary, 0.8)
    return None


def _interface_finding(facts: Iterable[LogFact], summary: str, confidence: float) -> Finding:
    listed = list(facts)
    ranks = tuple(sorted({fact.rank for fact in listed if fact.rank is not None}))
    change = "NCCL_SOCKET_IFNAME==<interface between the nodes> GLOO_SOCKET_IFNAME=<the same>"
    return Finding(
        cause="env.wrong_interface",
        status="confirmed",
        summary=f"{summary}.",
        confidence=confidence,
        ranks=ranks,
        evidence=tuple(EvidenceItem("log", f.file, f.text[:200], f.line) for f in listed[:8]),
        remedies=(Remedy("environment", change, "both take the interface that the other nodes can reach"),),
        measured=f"{len(listed)} lines in logs",
    )


def _local(name: str) -> bool:
    return LOCAL_INTERFACE.match(name) is not None


def _all_local(text: str) -> bool:
    found = interfaces(text)
    return bool(found) and all(_local(name) for name in found)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {shown}{f' and {len(ranks) - 8} more' if len(ranks) > 8 else ''}"
