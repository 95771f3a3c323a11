"""Rules between variables and the machine: interfaces and HCAs that do not exist, links that are there but unused."""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.situation import Change, Lint, Situation, assign, lint_of


def _missing(where: Situation) -> Iterator[Lint]:
    for name in sorted(where.missing_files & set(where.variables)):
        yield lint_of("error", name, "no_file", text=where.get(name))
    for name in sorted(where.missing_folders & set(where.variables)):
        yield lint_of("warning", name, "no_folder", text=where.get(name))


def _links_off(where: Situation) -> Iterator[Lint]:
    """RDMA between nodes, or NVLink within one, that a variable switches off."""
    off = where.number("NCCL_IB_DISABLE") not in (None, 0)
    name, nodes = "NCCL_IB_DISABLE" if off else "NCCL_NET", where.nnodes or 1
    if where.infiniband and nodes > 1 and (off or where.get("NCCL_NET").lower() == "socket"):
        text, devices = where.get(name), where.infiniband
        yield lint_of("error", name, "rdma_unused", Change(name), devices=devices, nodes=nodes, text=text)
    off = where.number("NCCL_P2P_DISABLE") == 1 or values.level(where.get("NCCL_P2P_LEVEL")) == "LOC"
    name = "NCCL_P2P_DISABLE" if where.number("NCCL_P2P_DISABLE") == 1 else "NCCL_P2P_LEVEL"
    if where.nvlink and off:
        yield lint_of("error", name, "nvlink_unused", Change(name), text=where.get(name))
    elif off and where.number("NCCL_SHM_DISABLE") not in (None, 0):
        yield lint_of("warning", name, "shm_and_p2p_off", Change("NCCL_SHM_DISABLE"))


def _interfaces(where: Situation) -> Iterator[Lint]:
    here = where.interfaces
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        text = where.get(name)
        if not text:
            continue
        chosen = values.names(text)
        if (where.nnodes or 1) > 1 and chosen.names == ("lo",) and not chosen.exclude:
            yield lint_of("error", name, "loopback", nodes=where.nnodes or 1)
        elif here and not any(map(chosen.selects, here)):
            yield lint_of("error", name, "selects_no_interface", text=text, here=here)
        elif here and (absent := _absent(chosen, here)):
            yield lint_of("note", name, "interface_absent", absent=absent, here=here)
    name = "GLOO_SOCKET_IFNAME"
    text = where.get(name)
    listed = tuple(text.split(","))
    if text and here and "^" not in text and "=" not in text and not set(listed) <= set(here):
        absent = tuple(interface for interface in listed if interface not in here)
        yield lint_of("error", name, "gloo_interface_absent", absent=absent, here=here)


def _hcas(where: Situation) -> Iterator[Lint]:
    name, here = "NCCL_IB_HCA", where.infiniband
    text = where.get(name)
    if not text or here is None or where.number("NCCL_IB_DISABLE") not in (None, 0):
        return
    if not here:
        if (where.nnodes or 2) > 1:
            yield lint_of("warning", name, "no_rdma", text=text)
        return
    chosen = values.names(text, hca=True)
    if not any(map(chosen.selects, here)):
        yield lint_of("error", name, "selects_no_hca", text=text, here=here)
        return
    if absent := _absent(chosen, here):
        yield lint_of("warning", name, "hca_absent", absent=absent, here=here)
    for wanted in chosen.names if not (chosen.exact or chosen.exclude) else ():
        more = tuple(hca for hca in here if hca.startswith(wanted) and hca[len(wanted) :].isdigit())
        if wanted in here and more:
            exactly = assign(name, "=" + ",".join(chosen.names))
            yield lint_of("warning", name, "hca_prefix", exactly, wanted=wanted, more=more)


def _absent(chosen: values.Names, here: tuple[str, ...]) -> tuple[str, ...]:
    """Names in a list that match nothing here; an exclusion that matches nothing does no harm."""
    names = () if chosen.exclude else chosen.names
    return tuple(name for name in names if not any(map(replace(chosen, names=(name,)).selects, here)))


RULES = (_links_off, _interfaces, _hcas, _missing)
"""All rules that need facts of the machine."""
