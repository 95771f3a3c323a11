"""Rules between variables: settings that fight each other, that have no effect together, or that risk the job.

Each rule is a function of the situation. What the machine must be like for a rule is in `rules_hardware`.
"""

from collections.abc import Iterator

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.situation import Lint, Situation, assign, unset

FIGHT = "env.contradiction"
RISK = "env.risky_setting"
DEBUG = "env.debug_left_on"
MAX_SOCKETS = 64
"""Threads times sockets per thread that NCCL takes for one connection."""


def _switched_off(where: Situation) -> Iterator[Lint]:
    """Yield settings of what another setting switches off."""
    if where.number("NCCL_P2P_DISABLE") == 1 and where.get("NCCL_P2P_LEVEL"):
        message = "NCCL_P2P_DISABLE=1 switches P2P off, so the level is ignored"
        yield Lint("warning", "NCCL_P2P_LEVEL", message, "unset NCCL_P2P_DISABLE, or the level", FIGHT)
    if where.number("NCCL_MNNVL_ENABLE") == 1 and where.number("NCCL_CUMEM_ENABLE") == 0:
        message = "multi-node NVLink needs cuMem, which NCCL_CUMEM_ENABLE=0 switches off: NCCL will not start"
        yield Lint("error", "NCCL_MNNVL_ENABLE", message, assign("NCCL_CUMEM_ENABLE", "1"), FIGHT)
    if where.number("NCCL_COLLNET_ENABLE") == 1 and where.get("NCCL_NET_PLUGIN").lower() == "none":
        message = "in-network reduction (CollNet) lives in a network plugin, which NCCL_NET_PLUGIN=none forbids"
        yield Lint("error", "NCCL_COLLNET_ENABLE", message, unset("NCCL_NET_PLUGIN"), FIGHT)
    if where.get("NCCL_DEBUG_SUBSYS") and where.get("NCCL_DEBUG").upper() not in ("INFO", "TRACE"):
        message = "subsystems choose among the lines of NCCL_DEBUG=INFO, which is not set: nothing is printed"
        yield Lint("note", "NCCL_DEBUG_SUBSYS", message, "NCCL_DEBUG=INFO, or unset it", FIGHT)


def _ib_off(where: Situation) -> Iterator[Lint]:
    """InfiniBand switched off and configured at once."""
    names = [name for name in catalogue().nccl if name.startswith("NCCL_IB_") and where.get(name)]
    names = [name for name in names if name not in ("NCCL_IB_DISABLE", "NCCL_IBVERBS_LIB")]
    off = where.number("NCCL_IB_DISABLE") not in (None, 0)
    net = where.get("NCCL_NET").lower()
    if names and (off or net == "socket"):
        switch = "NCCL_IB_DISABLE" if off else "NCCL_NET"
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        listed += " have" if len(names) > 1 else " has"
        message = f"{switch}={where.get(switch)} leaves no InfiniBand, so {listed} no effect"
        yield Lint("warning", switch, message, f"unset {switch}, or the others", FIGHT)
    if off and net == "ib":
        message = "NCCL_NET=IB asks for what NCCL_IB_DISABLE switches off: NCCL will not start"
        yield Lint("error", "NCCL_IB_DISABLE", message, "unset one of them", FIGHT)


def _numbers(where: Situation) -> Iterator[Lint]:
    """Two numbers that do not fit together."""
    for kind in ("CTAS", "NCHANNELS", "NRINGS", "P2P_NCHANNELS"):
        least, most = f"NCCL_MIN_{kind}", f"NCCL_MAX_{kind}"
        low, high = where.number(least), where.number(most)
        if low is not None and high is not None and low > high > 0:
            yield Lint("error", least, f"{least}={low} is above {most}={high}", f"lower {least}", FIGHT)
    threads, sockets = where.number("NCCL_SOCKET_NTHREADS"), where.number("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and sockets is not None and threads * sockets > MAX_SOCKETS:
        message = f"{threads} threads x {sockets} sockets are more than the {MAX_SOCKETS} that NCCL takes"
        yield Lint("error", "NCCL_NSOCKS_PERTHREAD", message, f"keep the product at or below {MAX_SOCKETS}", FIGHT)
    pairs = where.number("NCCL_IB_QPS_PER_CONNECTION")
    if pairs is not None and pairs > 1 and where.number("NCCL_IB_SPLIT_DATA_ON_QPS") == 1:
        message = f"every message is cut into {pairs} parts, one for each queue pair: small ones get slower"
        yield Lint("note", "NCCL_IB_SPLIT_DATA_ON_QPS", message, assign("NCCL_IB_SPLIT_DATA_ON_QPS", "0"), FIGHT)


def _algorithm_off(where: Situation) -> Iterator[Lint]:
    algorithms = where.get("NCCL_ALGO")
    if not algorithms or "^" in algorithms:
        return
    allowed = {word.strip().lower() for word in values.tuning(algorithms)}
    for family in ("NVLS", "COLLNET", "PAT"):
        switch = f"NCCL_{family}_ENABLE"
        disabled = {algorithm for algorithm in allowed if algorithm.startswith(family.lower())}
        if where.number(switch) == 0 and disabled == allowed and allowed:
            message = f"NCCL_ALGO={algorithms} allows only what {switch}=0 switches off"
            yield Lint("error", "NCCL_ALGO", message, f"unset {switch}, or NCCL_ALGO", FIGHT)
        elif where.number(switch) == 0 and disabled:
            message = f"NCCL_ALGO={algorithms} names an algorithm that {switch}=0 switches off"
            yield Lint("warning", "NCCL_ALGO", message, f"unset {switch}, or leave the algorithm out", FIGHT)


def _shared(where: Situation) -> Iterator[Lint]:
    """Two names of one setting with different values, and one file of many processes."""
    for name, other in [*((new, old) for old, new in catalogue().legacy.items()), *_SYNONYMS]:
        mine, theirs = where.get(name), where.get(other)
        if mine and theirs and mine.lower() != theirs.lower():
            message = f"{name}={mine} and {other}={theirs} are one setting; the first counts"
            yield Lint("warning", other, message, unset(other), FIGHT)

    file = where.get("NCCL_DEBUG_FILE")
    if file and "%p" not in file and where.get("NCCL_DEBUG") and (where.nproc or 0) > 1:
        stem, dot, suffix = file.rpartition(".")
        per_process = f"{stem}.%h.%p.{suffix}" if dot and "/" not in suffix else f"{file}.%h.%p"
        message = f"{where.nproc} processes write over each other in {file}"
        yield Lint("warning", "NCCL_DEBUG_FILE", message, assign("NCCL_DEBUG_FILE", per_process), FIGHT)


def _risks(where: Situation) -> Iterator[Lint]:
    """Yield the settings that turn a fault into a silent hang or into wrong numbers."""
    if where.get("NCCL_PROTO").strip().upper() == "LL128":
        message = "forcing LL128 corrupts data on platforms that do not support it; NCCL picks it where it is safe"
        yield Lint("warning", "NCCL_PROTO", message, unset("NCCL_PROTO"), RISK)
    handling = where.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or where.get("NCCL_ASYNC_ERROR_HANDLING")
    if handling and values.torch_int(handling) == 0:
        message = "with 0 a failed or timed-out collective hangs for ever instead of ending the job"
        yield Lint("warning", "TORCH_NCCL_ASYNC_ERROR_HANDLING", message, "unset it (default 3)", RISK)
    monitoring = where.get("TORCH_NCCL_ENABLE_MONITORING")
    if monitoring and values.torch_bool(monitoring) is False:
        message = "without the monitor a stuck watchdog is never noticed"
        yield Lint("warning", "TORCH_NCCL_ENABLE_MONITORING", message, "unset it (default 1)", RISK)
    # With the number of nodes known, `rules_hardware` knows whether it does harm.
    if where.number("NCCL_IB_DISABLE") not in (None, 0) and where.nnodes is None:
        message = (
            "it is copied from guides and is no default: it switches InfiniBand and RoCE off without a word, and does "
            "nothing on one node, on EFA, or where a network plugin is loaded"
        )
        fix = "unset it; to force TCP for a test take NCCL_NET=Socket, which fails loudly"
        yield Lint("warning" if where.infiniband else "note", "NCCL_IB_DISABLE", message, fix, RISK)


def _debugging(where: Situation) -> Iterator[Lint]:
    """Yield the settings that are meant for debugging and slow down every run."""
    level = where.get("NCCL_DEBUG").upper()
    subsystems = {word.strip().upper() for word in values.words(where.get("NCCL_DEBUG_SUBSYS"))}
    heavy = subsystems & {"ALL", "COLL", "CALL"} and not where.get("NCCL_DEBUG_SUBSYS").startswith("^")
    if level == "TRACE" or (level == "INFO" and heavy):
        message = "NCCL writes lines for every collective"
        yield Lint("warning", "NCCL_DEBUG", message, assign("NCCL_DEBUG", "WARN"), DEBUG)
    elif level == "INFO":
        yield Lint("note", "NCCL_DEBUG", "NCCL logs its whole start-up", assign("NCCL_DEBUG", "WARN"), DEBUG)
    if where.get("TORCH_DISTRIBUTED_DEBUG").upper() == "DETAIL":
        message = "DETAIL checks every collective over an extra gloo group, which is slow and fails on some networks"
        yield Lint("warning", "TORCH_DISTRIBUTED_DEBUG", message, assign("TORCH_DISTRIBUTED_DEBUG", "INFO"), DEBUG)
    if where.get("CUDA_LAUNCH_BLOCKING") not in ("", "0"):
        message = "every CUDA kernel is waited for: nothing overlaps"
        yield Lint("warning", "CUDA_LAUNCH_BLOCKING", message, unset("CUDA_LAUNCH_BLOCKING"), DEBUG)
    for name in ("TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_TRACE_CPP_STACK", "TORCH_FR_CPP_STACK"):
        if where.get(name) and values.torch_bool(where.get(name)):
            yield Lint("note", name, "it adds work to every collective", unset(name), DEBUG)


_SYNONYMS = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"),
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""(the name that counts, its older name)."""
RULES = (_numbers, _ib_off, _algorithm_off, _switched_off, _shared, _risks, _debugging)
"""All rules that hold on any machine."""
