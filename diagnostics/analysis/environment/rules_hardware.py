"""Rules between variables and the machine: interfaces and HCAs that do not exist, links that are there but unused.

A rule says nothing where the fact that it needs is unknown.
"""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.situation import Lint, Situation, assign, unset

WRONG = "env.wrong_interface"


def _missing(where: Situation) -> Iterator[Lint]:
    for name in sorted(where.missing_files & set(where.variables)):
        message = f"the file {where.get(name)} does not exist"
        yield Lint("error", name, message, "mount or copy it, or unset the variable", "env.invalid_value")
    for name in sorted(where.missing_folders & set(where.variables)):
        message = f"the folder of {where.get(name)} does not exist: nothing is written"
        yield Lint("warning", name, message, "make the folder, or unset the variable", "env.invalid_value")


def _links_off(where: Situation) -> Iterator[Lint]:
    """RDMA between nodes, or NVLink within one, that a variable switches off."""
    off = where.number("NCCL_IB_DISABLE") not in (None, 0)
    name = "NCCL_IB_DISABLE" if off else "NCCL_NET"
    if where.infiniband and (where.nnodes or 1) > 1 and (off or where.get("NCCL_NET").lower() == "socket"):
        message = (
            f"this node has RDMA devices ({_some(where.infiniband)}), but {name}={where.get(name)} sends everything "
            f"between the {where.nnodes} nodes through TCP sockets"
        )
        yield Lint("error", name, message, unset(name), "env.ib_disabled")
    off = where.number("NCCL_P2P_DISABLE") == 1 or values.level(where.get("NCCL_P2P_LEVEL")) == "LOC"
    name = "NCCL_P2P_DISABLE" if where.number("NCCL_P2P_DISABLE") == 1 else "NCCL_P2P_LEVEL"
    if where.nvlink and off:
        message = f"the GPUs are connected by NVLink, but {name}={where.get(name)} makes them copy through host memory"
        yield Lint("error", name, message, unset(name), "env.p2p_disabled")
    elif off and where.number("NCCL_SHM_DISABLE") not in (None, 0):
        message = "with P2P and shared memory both off, the GPUs of one node talk over the network"
        yield Lint("warning", name, message, unset("NCCL_SHM_DISABLE"), "env.p2p_disabled")


def _interfaces(where: Situation) -> Iterator[Lint]:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        text = where.get(name)
        if not text:
            continue
        chosen = values.names(text)
        if (where.nnodes or 1) > 1 and chosen.names == ("lo",) and not chosen.exclude:
            message = f"lo reaches this node only, and the job has {where.nnodes} nodes"
            yield Lint("error", name, message, f"{name}=<interface between the nodes>", WRONG)
        elif where.interfaces and not any(map(chosen.selects, where.interfaces)):
            message = f"{text!r} selects none of this node's interfaces ({_some(where.interfaces)})"
            yield Lint("error", name, message, f"{name}=<one of them>", WRONG)
        elif where.interfaces and (absent := _absent(chosen, where.interfaces)):
            message = f"{_some(absent)} is not an interface here ({_some(where.interfaces)}); the others are used"
            yield Lint("note", name, message, "leave it out", WRONG)
    name, interfaces = "GLOO_SOCKET_IFNAME", where.interfaces
    text = where.get(name)
    if text and interfaces and "^" not in text and "=" not in text and not set(text.split(",")) <= set(interfaces):
        foreign = ", ".join(listed for listed in text.split(",") if listed not in interfaces)
        message = f"gloo needs exact names, and {foreign} is not an interface here ({_some(interfaces)})"
        yield Lint("error", name, message, f"{name}=<one of them>", WRONG)


def _hcas(where: Situation) -> Iterator[Lint]:
    name = "NCCL_IB_HCA"
    text = where.get(name)
    if not text or where.infiniband is None or where.number("NCCL_IB_DISABLE") not in (None, 0):
        return
    if not where.infiniband:
        if (where.nnodes or 2) > 1:
            message = f"{text!r} names RDMA devices, and this node has none: NCCL falls back to sockets"
            yield Lint("warning", name, message, "unset it, or load the driver of the cards", WRONG)
        return
    chosen = values.names(text, hca=True)
    if not any(map(chosen.selects, where.infiniband)):
        message = f"{text!r} selects none of this node's HCAs ({_some(where.infiniband)}): NCCL falls back to sockets"
        yield Lint("error", name, message, f"{name}=<one of them>", WRONG)
        return
    if absent := _absent(chosen, where.infiniband):
        message = f"{_some(absent)} is not a card of this node ({_some(where.infiniband)}); the others carry everything"
        yield Lint("warning", name, message, "leave it out, or find out what became of the card", WRONG)
    if not chosen.exact and not chosen.exclude:
        for wanted in chosen.names:
            more = tuple(hca for hca in where.infiniband if hca.startswith(wanted) and hca[len(wanted) :].isdigit())
            if wanted in where.infiniband and more:
                message = f"{wanted} is a prefix and also takes {_some(more)}"
                yield Lint("warning", name, message, assign(name, "=" + ",".join(chosen.names)), WRONG)


def _absent(chosen: values.Names, here: tuple[str, ...]) -> tuple[str, ...]:
    """Names in a list that match nothing here; an exclusion that matches nothing does no harm."""
    names = () if chosen.exclude else chosen.names
    return tuple(name for name in names if not any(map(replace(chosen, names=(name,)).selects, here)))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


RULES = (_links_off, _interfaces, _hcas, _missing)
"""All rules that need facts of the machine."""
