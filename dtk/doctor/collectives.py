"""A tiny collective of each kind between real ranks, with a limit: gloo, and NCCL where there are GPUs. No torch."""

import os
from collections.abc import Mapping, Sequence

from diagnostics.contract.formatting import counted, first_of
from dtk.doctor.model import ChildOutput, Finding, Remedy, Result, Scope, judged, not_applicable, run_children
from dtk.launch.children import local_ranks

RANKS = 2  # Smallest number of ranks that communicates, used without GPUs.
BETWEEN_NODES = "checked between the nodes: see the last table"
INNER = 0.75  # Chosen: fraction of the limit after which a rank gives up by itself, so that it can report where.


def try_ranks(backend: str, timeout_s: float, environments: Mapping[int, Mapping[str, str]]) -> list[ChildOutput]:
    """Try every collective on the ranks with these variables."""
    return run_children(["-m", "dtk.doctor.collective_ranks", backend, str(INNER * timeout_s)], timeout_s, environments)


def collectives_gloo(scope: Scope) -> Result:
    """Check gloo between processes on the CPU."""
    if scope.nodes > 1:
        return not_applicable(BETWEEN_NODES)
    torch = scope.torch()
    if not torch.facts.get("gloo"):
        return not_applicable(torch.reason or "this torch has no gloo")
    return judge(try_ranks("gloo", scope.timeout_s, local_ranks(RANKS, 1)), "gloo")


def collectives_nccl(scope: Scope) -> Result:
    """Check NCCL between all GPUs of this machine."""
    if scope.nodes > 1:
        return not_applicable(BETWEEN_NODES)
    torch = scope.torch()
    count = len(torch.facts.get("devices", []))
    if not torch.facts.get("nccl") or not count:
        absent = "torch sees no CUDA device" if torch.facts.get("nccl") else "this torch has no NCCL"
        return not_applicable(torch.reason or torch.facts.get("cuda_error") or absent)
    return judge(try_ranks("nccl", scope.timeout_s, local_ranks(count, 1)), "nccl")


def judge(outputs: Sequence[ChildOutput], backend: str, hosts: Sequence[str] = ()) -> Result:
    """Judge the ranks' output: which rank failed, where it stopped, what was wrong, how long each operation took."""
    findings = _stopped(outputs, backend, hosts)
    wrong: dict[str, list[int]] = {}
    times: dict[str, float] = {}
    for rank, output in enumerate(outputs):
        for record in output.records:
            if "done" in record:
                name = str(record["done"])
                times[name] = max(times.get(name, 0.0), float(record["ms"]))
                if not record["right"]:
                    wrong.setdefault(name, []).append(rank)
    for name, ranks in wrong.items():
        text = f"{name} on {backend} gives a wrong result on {counted(len(ranks), 'rank')} ({_listed(ranks, hosts)})"
        findings.append(Finding("failure", text, _remedy(backend, bool(hosts))))
    fine = f"{len(times)} collectives work between {counted(len(outputs), 'rank')} on {backend}"
    lines = [", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())] if times else []
    measures = {"ranks": len(outputs), "backend": backend, "slowest_ms": times}
    return judged(findings, fine, details=lines, measures=measures)


def _stopped(outputs: Sequence[ChildOutput], backend: str, hosts: Sequence[str]) -> list[Finding]:
    """Return findings on ranks that did not finish: those that failed by themselves, else the silent ones."""
    bad = [rank for rank, output in enumerate(outputs) if output.problem]
    if not bad:
        return []
    absent = [rank for rank in bad if not outputs[rank].records]
    dead = [rank for rank in bad if not outputs[rank].late and "error" not in (outputs[rank].records or [{}])[-1]]
    culprits = dead or absent or bad
    why = f"{'never joined: ' if absent and not dead else ''}{outputs[culprits[0]].problem}"
    text = f"{_listed(culprits, hosts)} of {len(outputs)} on {backend}: {why}"
    waiting = [rank for rank in bad if rank not in culprits]
    begun = [[str(r["begin"]) for r in outputs[rank].records if "begin" in r] for rank in waiting or bad]
    where = ", ".join(sorted({calls[-1] for calls in begun if calls}))
    if where:
        text += f" ({_listed(waiting, hosts)} waited in {where})" if waiting else f" (stopped in {where})"
    return [Finding("failure", text, _remedy(backend, bool(hosts)))]


def _listed(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    names = [f"{rank} ({hosts[rank]})" if hosts else str(rank) for rank in ranks]
    return f"rank{'s' * (len(ranks) > 1)} {first_of(names)}"


def _remedy(backend: str, several_nodes: bool) -> Remedy:
    if backend == "nccl":
        return Remedy("check what NCCL logs", "NCCL_DEBUG=INFO dtk doctor --only collectives_nccl -v")
    if several_nodes:
        return Remedy("set the interface that connects the nodes, and open its ports", "export GLOO_SOCKET_IFNAME=NAME")
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return Remedy(f"GLOO_SOCKET_IFNAME={interface} may be the cause", "unset GLOO_SOCKET_IFNAME")
    return Remedy("check what gloo logs", "TORCH_CPP_LOG_LEVEL=INFO dtk doctor --only collectives_gloo -v")
