"""The linter of environment variables: applies every rule to one set of variables. Reads no files."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import Version, catalogue
from diagnostics.analysis.environment.rules_values import check_name, check_value
from diagnostics.analysis.environment.situation import Change, Lint, Severity, Situation, assign, lint_of, situation


def _missing(where: Situation) -> Iterator[Lint]:
    for name in sorted(where.missing_files & set(where.variables)):
        yield lint_of("error", name, "no_file", text=where.get(name))
    for name in sorted(where.missing_folders & set(where.variables)):
        yield lint_of("warning", name, "no_folder", text=where.get(name))


def _links_off(where: Situation) -> Iterator[Lint]:
    """Yield variables that disable RDMA between nodes, or NVLink or shared memory within a node."""
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
    present = where.interfaces
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        text = where.get(name)
        if not text:
            continue
        chosen = values.names(text)
        if (where.nnodes or 1) > 1 and chosen.names == ("lo",) and not chosen.exclude:
            yield lint_of("error", name, "loopback", nodes=where.nnodes or 1)
        elif present and not any(map(chosen.selects, present)):
            yield lint_of("error", name, "selects_no_interface", text=text, present=present)
        elif present and (absent := _absent(chosen, present)):
            yield lint_of("note", name, "interface_absent", absent=absent, present=present)
    name = "GLOO_SOCKET_IFNAME"
    text = where.get(name)
    listed = tuple(text.split(","))
    if text and present and "^" not in text and "=" not in text and not set(listed) <= set(present):
        absent = tuple(interface for interface in listed if interface not in present)
        yield lint_of("error", name, "gloo_interface_absent", absent=absent, present=present)


def _hcas(where: Situation) -> Iterator[Lint]:
    name, present = "NCCL_IB_HCA", where.infiniband
    text = where.get(name)
    if not text or present is None or where.number("NCCL_IB_DISABLE") not in (None, 0):
        return
    if not present:
        if (where.nnodes or 2) > 1:
            yield lint_of("warning", name, "no_rdma", text=text)
        return
    chosen = values.names(text, hca=True)
    if not any(map(chosen.selects, present)):
        yield lint_of("error", name, "selects_no_hca", text=text, present=present)
        return
    if absent := _absent(chosen, present):
        yield lint_of("warning", name, "hca_absent", absent=absent, present=present)
    for prefix in chosen.names if not (chosen.exact or chosen.exclude) else ():
        more = tuple(hca for hca in present if hca.startswith(prefix) and hca[len(prefix) :].isdigit())
        if prefix in present and more:
            exactly = assign(name, "=" + ",".join(chosen.names))
            yield lint_of("warning", name, "hca_prefix", exactly, prefix=prefix, more=more)


def _absent(chosen: values.Names, present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a list that match no device; those of an exclusion list do no harm and are not returned."""
    names = () if chosen.exclude else chosen.names
    return tuple(name for name in names if not any(map(replace(chosen, names=(name,)).selects, present)))


MAX_SOCKETS = 64  # NCCL's maximum of threads times sockets per thread for one connection.


def _switched_off(where: Situation) -> Iterator[Lint]:
    if where.number("NCCL_P2P_DISABLE") == 1 and where.get("NCCL_P2P_LEVEL"):
        yield lint_of("warning", "NCCL_P2P_LEVEL", "p2p_level_ignored")
    if where.number("NCCL_MNNVL_ENABLE") == 1 and where.number("NCCL_CUMEM_ENABLE") == 0:
        yield lint_of("error", "NCCL_MNNVL_ENABLE", "mnnvl_without_cumem", assign("NCCL_CUMEM_ENABLE", "1"))
    if where.number("NCCL_COLLNET_ENABLE") == 1 and where.get("NCCL_NET_PLUGIN").lower() == "none":
        yield lint_of("error", "NCCL_COLLNET_ENABLE", "collnet_without_plugin", Change("NCCL_NET_PLUGIN"))
    if where.get("NCCL_DEBUG_SUBSYS") and where.get("NCCL_DEBUG").upper() not in ("INFO", "TRACE"):
        yield lint_of("note", "NCCL_DEBUG_SUBSYS", "subsystems_unused")


def _ib_off(where: Situation) -> Iterator[Lint]:
    names = tuple(name for name in catalogue().nccl if name.startswith("NCCL_IB_") and where.get(name))
    names = tuple(name for name in names if name not in ("NCCL_IB_DISABLE", "NCCL_IBVERBS_LIB"))
    off = where.number("NCCL_IB_DISABLE") not in (None, 0)
    net = where.get("NCCL_NET").lower()
    if names and (off or net == "socket"):
        switch = "NCCL_IB_DISABLE" if off else "NCCL_NET"
        yield lint_of("warning", switch, "ib_settings_unused", text=where.get(switch), words=names)
    if off and net == "ib":
        yield lint_of("error", "NCCL_IB_DISABLE", "ib_asked_for_and_off")


def _numbers(where: Situation) -> Iterator[Lint]:
    for kind in ("CTAS", "NCHANNELS", "NRINGS", "P2P_NCHANNELS"):
        least, most = f"NCCL_MIN_{kind}", f"NCCL_MAX_{kind}"
        low, high = where.number(least), where.number(most)
        if low is not None and high is not None and low > high > 0:
            yield lint_of("error", least, "least_above_most", low=low, high=high, other=most)
    threads, sockets = where.number("NCCL_SOCKET_NTHREADS"), where.number("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and sockets is not None and threads * sockets > MAX_SOCKETS:
        name = "NCCL_NSOCKS_PERTHREAD"
        yield lint_of("error", name, "too_many_sockets", threads=threads, sockets=sockets, most=MAX_SOCKETS)
    pairs, split = where.number("NCCL_IB_QPS_PER_CONNECTION"), "NCCL_IB_SPLIT_DATA_ON_QPS"
    if pairs is not None and pairs > 1 and where.number(split) == 1:
        yield lint_of("note", split, "split_messages", assign(split, "0"), pairs=pairs)


def _algorithm_off(where: Situation) -> Iterator[Lint]:
    algorithms = where.get("NCCL_ALGO")
    if not algorithms or "^" in algorithms:
        return
    allowed = {word.strip().lower() for word in values.tuning(algorithms)}
    for family in ("NVLS", "COLLNET", "PAT"):
        switch = f"NCCL_{family}_ENABLE"
        disabled = {algorithm for algorithm in allowed if algorithm.startswith(family.lower())}
        if where.number(switch) == 0 and disabled:
            severity: Severity = "error" if disabled == allowed else "warning"
            rule = "algorithms_off" if disabled == allowed else "algorithm_off"
            yield lint_of(severity, "NCCL_ALGO", rule, text=algorithms, switch=switch)


def _shared(where: Situation) -> Iterator[Lint]:
    """Yield two names of one setting with different values, and a log file that several processes share."""
    for name, other in [*((new, old) for old, new in catalogue().legacy.items()), *catalogue().synonyms.items()]:
        value, text = where.get(name), where.get(other)
        if value and text and value.lower() != text.lower():
            yield lint_of("warning", other, "synonyms", Change(other), name=name, value=value, text=text)

    file = where.get("NCCL_DEBUG_FILE")
    if file and "%p" not in file and where.get("NCCL_DEBUG") and (where.nproc or 0) > 1:
        stem, dot, suffix = file.rpartition(".")
        per_process = f"{stem}.%h.%p.{suffix}" if dot and "/" not in suffix else f"{file}.%h.%p"
        change = assign("NCCL_DEBUG_FILE", per_process)
        yield lint_of("warning", "NCCL_DEBUG_FILE", "shared_file", change, processes=where.nproc or 0, text=file)


def _risks(where: Situation) -> Iterator[Lint]:
    """Yield the settings that turn a fault into a silent hang or into wrong results."""
    if where.get("NCCL_PROTO").strip().upper() == "LL128":
        yield lint_of("warning", "NCCL_PROTO", "ll128", Change("NCCL_PROTO"))
    handling = where.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or where.get("NCCL_ASYNC_ERROR_HANDLING")
    if handling and values.torch_int(handling) == 0:
        yield lint_of("warning", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "error_handling_off")
    monitoring = where.get("TORCH_NCCL_ENABLE_MONITORING")
    if monitoring and values.torch_bool(monitoring) is False:
        yield lint_of("warning", "TORCH_NCCL_ENABLE_MONITORING", "monitor_off")
    # If the number of nodes is known, `_links_off` decides whether this does harm.
    if where.number("NCCL_IB_DISABLE") not in (None, 0) and where.nnodes is None:
        yield lint_of("warning" if where.infiniband else "note", "NCCL_IB_DISABLE", "ib_off_by_habit")


def _debugging(where: Situation) -> Iterator[Lint]:
    """Yield the settings that are meant for debugging and slow down every run."""
    level = where.get("NCCL_DEBUG").upper()
    subsystems = {word.strip().upper() for word in values.words(where.get("NCCL_DEBUG_SUBSYS"))}
    heavy = subsystems & {"ALL", "COLL", "CALL"} and not where.get("NCCL_DEBUG_SUBSYS").startswith("^")
    if level == "TRACE" or (level == "INFO" and heavy):
        yield lint_of("warning", "NCCL_DEBUG", "logs_collectives", assign("NCCL_DEBUG", "WARN"))
    elif level == "INFO":
        yield lint_of("note", "NCCL_DEBUG", "logs_start", assign("NCCL_DEBUG", "WARN"))
    if where.get("TORCH_DISTRIBUTED_DEBUG").upper() == "DETAIL":
        yield lint_of("warning", "TORCH_DISTRIBUTED_DEBUG", "detail", assign("TORCH_DISTRIBUTED_DEBUG", "INFO"))
    if where.get("CUDA_LAUNCH_BLOCKING") not in ("", "0"):
        yield lint_of("warning", "CUDA_LAUNCH_BLOCKING", "launch_blocking", Change("CUDA_LAUNCH_BLOCKING"))
    for name in ("TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_TRACE_CPP_STACK", "TORCH_FR_CPP_STACK"):
        if where.get(name) and values.torch_bool(where.get(name)):
            yield lint_of("note", name, "adds_work", Change(name))


RULES = (
    _numbers, _ib_off, _algorithm_off, _switched_off, _shared, _risks, _debugging,
    _links_off, _interfaces, _hcas, _missing,
)  # fmt: skip


_ORDER = {"error": 0, "warning": 1, "note": 2}  # The most severe first.


def lint(
    variables: dict[str, str], nccl_version: Version | None, nnodes: int | None, hardware: dict[str, Any]
) -> list[Lint]:
    """Return what is wrong with a process's variables (name -> text), the most severe first, then sorted by name.

    Names that neither NCCL, torch nor gloo reads are ignored. Arguments: see `situation.situation`; None, {} = unknown.
    """
    where = situation(variables, nccl_version, nnodes, hardware)
    lints = {lint for rule in RULES for lint in rule(where)}
    for name, text in variables.items():
        lints |= {*check_name(name, where), *check_value(name, text, where)}
    return sorted(lints, key=lambda lint: (_ORDER[lint.severity], lint.variable, lint.rule, str(lint.values)))
