"""A tiny collective of each kind between real ranks, with a limit: on gloo, and on NCCL where there are GPUs.

Starts the ranks and judges what they said; imports no torch itself.
"""

import os
from collections.abc import Mapping, Sequence

from diagnostics.contract.formatting import counted
from dtk.doctor.children import Said, run_children
from dtk.doctor.model import Check, Finding, Remedy, Result, judged, not_applicable
from dtk.doctor.scope import Scope
from dtk.launch.children import local_ranks

TOPIC = "collectives"
RANKS = 2
"""On one machine without GPUs: the fewest that communicate."""
INNER = 0.75
"""Part of the limit after which a rank gives up by itself, so that it can still say where."""


def try_ranks(backend: str, timeout_s: float, environments: Mapping[int, Mapping[str, str]]) -> list[Said]:
    """Try every collective as the ranks whose variables are given."""
    return run_children(["-m", "dtk.doctor.rank", backend, str(INNER * timeout_s)], timeout_s, environments)


def on_this_machine(backend: str, ranks: int, timeout_s: float) -> list[Said]:
    """Ranks of one machine, which meet at a free port of loopback."""
    return try_ranks(backend, timeout_s, local_ranks(ranks, 1))


def gloo(scope: Scope) -> Result:
    """On the CPU, between processes."""
    if scope.nodes > 1:
        return not_applicable("tried between the nodes, see there")
    asked = scope.torch()
    if not asked.facts.get("gloo"):
        return not_applicable(asked.reason or "this torch has no gloo")
    return judge(on_this_machine("gloo", RANKS, scope.timeout_s), "gloo", several_nodes=False)


def nccl(scope: Scope) -> Result:
    """Between all GPUs of this machine."""
    if scope.nodes > 1:
        return not_applicable("tried between the nodes, see there")
    facts = scope.torch().facts
    count = len(facts.get("devices", []))
    if not facts.get("nccl") or not count:
        reason = scope.torch().reason or facts.get("cuda_error")
        return not_applicable(
            reason or ("torch sees no CUDA device" if facts.get("nccl") else "this torch has no NCCL")
        )
    return judge(on_this_machine("nccl", count, scope.timeout_s), "nccl", several_nodes=False)


def judge(said: Sequence[Said], backend: str, *, several_nodes: bool, hosts: Sequence[str] = ()) -> Result:
    """Judge the ranks' output: which rank is to blame, where it stopped, what was wrong, how long each operation took.

    Args:
        said: one for each rank, in order.
        backend: `gloo` or `nccl`.
        several_nodes: decides what can be done about it.
        hosts: host of each rank, if there are several.
    """
    findings = _stopped(said, backend, several_nodes, hosts)
    wrong: dict[str, list[int]] = {}
    times: dict[str, float] = {}
    for rank, one in enumerate(said):
        for record in one.records:
            if "done" not in record:
                continue
            name = str(record["done"])
            times[name] = max(times.get(name, 0.0), float(record["ms"]))
            if not record["right"]:
                wrong.setdefault(name, []).append(rank)
    for name, ranks in wrong.items():
        text = f"{name} on {backend} gives a wrong result on {counted(len(ranks), 'rank')} ({_listed(ranks, hosts)})"
        findings.append(Finding("failure", text, _remedy(backend, several_nodes)))
    fine = f"{len(times)} kinds between {counted(len(said), 'rank')} on {backend}"
    lines = [", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())] if times else []
    measures = {"ranks": len(said), "backend": backend, "slowest_ms": times}
    return judged(findings, fine, details=lines, measures=measures)


def _stopped(said: Sequence[Said], backend: str, several_nodes: bool, hosts: Sequence[str]) -> list[Finding]:
    """Ranks that did not come to their end: those that never came are to blame before those that waited."""
    bad = [rank for rank, one in enumerate(said) if one.problem]
    if not bad:
        return []
    absent = [rank for rank in bad if not said[rank].records]
    dead = [rank for rank in bad if not said[rank].late and "error" not in (said[rank].records or [{}])[-1]]
    blamed = dead or absent or bad
    why = said[blamed[0]].problem
    if absent and not dead:
        why = "never came: " + why
    text = f"{_listed(blamed, hosts)} of {len(said)} on {backend}: {why}"
    waiting = [rank for rank in bad if rank not in blamed]
    where = ", ".join(sorted({place for rank in (waiting or bad) if (place := _place(said[rank]))}))
    if where:
        text += f" ({_listed(waiting, hosts)} waited in {where})" if waiting else f" (stopped in {where})"
    return [Finding("failure", text, _remedy(backend, several_nodes))]


def _place(one: Said) -> str:
    """Return the collective in which a rank stopped."""
    begun = [str(record["begin"]) for record in one.records if "begin" in record]
    return begun[-1] if begun else ""


def _listed(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    shown = [f"{rank} ({hosts[rank]})" if hosts else str(rank) for rank in ranks[:8]]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(shown)}" + (" ..." if len(ranks) > 8 else "")


def _remedy(backend: str, several_nodes: bool) -> Remedy:
    """Return the remedy to try next."""
    if backend == "nccl":
        return Remedy("see what NCCL says", "NCCL_DEBUG=INFO dtk doctor --only collectives_nccl -v")
    if several_nodes:
        return Remedy("name the interface that joins the nodes, and open its ports", "export GLOO_SOCKET_IFNAME=NAME")
    set_to = os.environ.get("GLOO_SOCKET_IFNAME")
    if set_to:
        return Remedy(f"GLOO_SOCKET_IFNAME={set_to} may be the cause", "unset GLOO_SOCKET_IFNAME")
    return Remedy("see what gloo says", "TORCH_CPP_LOG_LEVEL=INFO dtk doctor --only collectives_gloo -v")


CHECKS = (
    Check("collectives_gloo", TOPIC, "a tiny collective of each kind on gloo, results checked", gloo, slow=True),
    Check("collectives_nccl", TOPIC, "a tiny collective of each kind on NCCL, between all GPUs", nccl, slow=True),
)
