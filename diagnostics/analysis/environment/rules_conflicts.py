"""Rules between variables: settings that fight each other, that have no effect together, or that risk the job."""

from collections.abc import Iterator

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.situation import Change, Lint, Severity, Situation, assign, lint_of

MAX_SOCKETS = 64
"""Threads times sockets per thread that NCCL takes for one connection."""


def _switched_off(where: Situation) -> Iterator[Lint]:
    """Yield settings of what another setting switches off."""
    if where.number("NCCL_P2P_DISABLE") == 1 and where.get("NCCL_P2P_LEVEL"):
        yield lint_of("warning", "NCCL_P2P_LEVEL", "p2p_level_ignored")
    if where.number("NCCL_MNNVL_ENABLE") == 1 and where.number("NCCL_CUMEM_ENABLE") == 0:
        yield lint_of("error", "NCCL_MNNVL_ENABLE", "mnnvl_without_cumem", assign("NCCL_CUMEM_ENABLE", "1"))
    if where.number("NCCL_COLLNET_ENABLE") == 1 and where.get("NCCL_NET_PLUGIN").lower() == "none":
        yield lint_of("error", "NCCL_COLLNET_ENABLE", "collnet_without_plugin", Change("NCCL_NET_PLUGIN"))
    if where.get("NCCL_DEBUG_SUBSYS") and where.get("NCCL_DEBUG").upper() not in ("INFO", "TRACE"):
        yield lint_of("note", "NCCL_DEBUG_SUBSYS", "subsystems_unused")


def _ib_off(where: Situation) -> Iterator[Lint]:
    """InfiniBand switched off and configured at once."""
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
    """Two numbers that do not fit together."""
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
    """Two names of one setting with different values, and one file of many processes."""
    for name, other in [*((new, old) for old, new in catalogue().legacy.items()), *_SYNONYMS]:
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
    """Yield the settings that turn a fault into a silent hang or into wrong numbers."""
    if where.get("NCCL_PROTO").strip().upper() == "LL128":
        yield lint_of("warning", "NCCL_PROTO", "ll128", Change("NCCL_PROTO"))
    handling = where.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or where.get("NCCL_ASYNC_ERROR_HANDLING")
    if handling and values.torch_int(handling) == 0:
        yield lint_of("warning", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "error_handling_off")
    monitoring = where.get("TORCH_NCCL_ENABLE_MONITORING")
    if monitoring and values.torch_bool(monitoring) is False:
        yield lint_of("warning", "TORCH_NCCL_ENABLE_MONITORING", "monitor_off")
    # With the number of nodes known, `rules_hardware` knows whether it does harm.
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


_SYNONYMS = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"),
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""(the name that counts, its older name)."""
RULES = (_numbers, _ib_off, _algorithm_off, _switched_off, _shared, _risks, _debugging)
"""All rules that hold on any machine."""
