"""The part of the table of log lines that NCCL prints, or torch about NCCL (kinds: `patterns`).

Source: NCCL's sources to 2.30; `patterns.TABLE` takes it over. Reads no file.
"""

from diagnostics.evidence.logs.fields import PEER, Pattern
from diagnostics.evidence.logs.fields import pattern as _p

_NCCL_RESULT = (
    _p(
        "dist_backend_error",
        "NCCL error in: ",
        r"NCCL error in: (?P<source>[^,]+:\d+), (?P<error>.*?)"
        r"(?:, NCCL version (?P<version>[\d.]+))?$",
    ),
    *(
        _p("nccl_result", name, rf"(?P<result>{name})(?:: |$)")
        for name in (
            "ncclSystemError",
            "ncclRemoteError",
            "ncclInvalidUsage",
            "ncclUnhandledCudaError",
            "ncclInternalError",
            "ncclInvalidArgument",
            "ncclTimeout",
        )
    ),
    _p("nccl_version", "NCCL version ", r"^NCCL version (?P<version>\d[\d.]*)(?:\+cuda(?P<cuda>[\d.]+))?"),
)

_NCCL_INFO = (
    _p(
        "nccl_env",
        " set by environment to ",
        r"NCCL INFO (?P<name>NCCL_\w+) set by environment to (?P<value>.*?)\.?$",
    ),
    _p("nccl_env", "NCCL_IB_HCA set to ", r"NCCL INFO (?P<name>NCCL_IB_HCA) set to (?P<value>.*)$"),
    *(
        _p(
            "variable",
            word,
            r"^(?:export |declare -x )?(?P<name>(?:NCCL|TORCH|GLOO|PYTORCH)_[A-Z0-9_]+)=(?P<value>.*)$",
        )
        for word in ("NCCL_", "TORCH_", "GLOO_", "PYTORCH_")
    ),
    _p("nccl_env_invalid", "Invalid value ", r"Invalid value (?P<value>.*?) for (?P<name>NCCL_\w+)"),
    _p("nccl_net", "Using network ", r"NCCL INFO Using network (?P<net>.+?)\s*$"),
    _p("nccl_net", "Assigned NET plugin ", r"NCCL INFO Assigned NET plugin (?P<net>.+?) to comm"),
    _p("nccl_no_ib", "NET/IB : No device found", r"NCCL INFO NET/IB : No device found"),
    _p("nccl_ib", "NET/IB : Using ", r"NCCL INFO NET/IB : Using (?P<devices>.*)$"),
    _p("nccl_socket", "NET/Socket : Using ", r"NCCL INFO NET/Socket : Using (?P<interfaces>.*)$"),
    _p("nccl_bootstrap", "Bootstrap", r"NCCL INFO Bootstrap ?: Using (?P<interface>[\w.@-]+):(?P<address>[^<\s]*)"),
    _p("nccl_plugin_failed", "NET plugin", r"NCCL (?:INFO|WARN) (?:Failed to initialize NET plugin (?P<net>.*))$"),
    _p(
        "nccl_init",
        "ncclCommInitRank",
        r"NCCL INFO (?:\[Rank \d+\] )?ncclCommInitRank\w* comm \w+ "
        r"rank (?P<comm_rank>\d{1,9}) nranks (?P<nranks>\d{1,9})"
        r".*? Init (?P<phase>START|COMPLETE)",
    ),
    *(
        _p(
            "nccl_transport",
            word,
            r"NCCL INFO (?:Channel|Ring) .*? via (?P<transport>P2P|SHM|NET)"
            r"(?:/(?P<net>[\w .-]+?)/\d+)?(?P<gdr>.*?/GDRDMA)?",
        )
        for word in (" via P2P", " via SHM", " via NET")
    ),
    _p("nccl_no_p2p", "Could not enable P2P", r"Could not enable P2P between dev"),
    _p("nccl_nvls", "NVLS multicast support", r"NVLS multicast support is (?P<available>not available|available)"),
)

_NCCL_WARN = tuple(
    _p(kind, "NCCL WARN ", rf"NCCL WARN {regex}")
    for kind, regex in (
        (
            "nccl_ib_error",
            rf"NET/IB ?: .*?Got completion from peer {PEER} with (?:error|status)[= ](?:\w+\()?(?P<status>\d+)\)?"
            r"(?:.*?vendor[ _]err[= ](?P<vendor_error>\d+))?(?:.*?localGid (?P<local_gid>[\w:.]+))?"
            r"(?:.*?remoteGids? ?(?P<remote_gid>[\w:.]+))?(?:.*? hca (?P<device>[\w.-]+))?",
        ),
        (
            "nccl_ib_async",
            r"NET/IB ?: (?P<event>(?:(?P<device>[\w.-]+):(?P<port>\d+) )?.*(?:async.* event|GID table changed)"
            r"(?:.*?(?P<failed>port error|device fatal))?.*)",
        ),
        ("interface_missing", r".*no socket interface found"),
        ("nccl_duplicate_rank", r".*rank (?P<duplicate>\d+) of \d+ ranks has already checked in"),
        ("nccl_peer_closed", rf"(?:.*: )?(?:Net ?: )?(?:Connection closed by remote peer) {PEER}"),
        ("nccl_connect", rf".*?[cC]onnect (?:to )?{PEER} (?:failed|returned) ?:? ?(?P<why>.*)"),
        (
            "nccl_shm",
            r".*?(?:failed to extend (?P<path>/dev/shm/\S+) to (?P<needed_bytes>\d+) bytes|posix_fallocate failed)"
            r"(?:.*?(?P<full>No space left))?",
        ),
        (
            "nccl_duplicate_gpu",
            r"Duplicate GPU detected : rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<gpu>\w+)",
        ),
        ("nccl_duplicate_gpu", r".*Multiple Ranks are using the same (?:GPU|Partition).*"),
        ("nccl_version_mismatch", r"Mismatched NCCL version detected ?: ?(?P<detail>.*)"),
        ("nccl_warn", r"(?P<warning>.*)"),
    )
)

_LAST_ERROR = tuple(
    _p(kind, word, rf"^(?!.*NCCL WARN ).*?{regex}")
    for kind, word, regex in (
        (
            "nccl_duplicate_gpu",
            "Duplicate GPU detected",
            r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<gpu>\w+)",
        ),
        ("nccl_duplicate_gpu", "Multiple Ranks are using", r"Multiple Ranks are using the same (?:GPU|Partition)"),
        ("nccl_version_mismatch", "Mismatched NCCL version", r"Mismatched NCCL version detected ?: ?(?P<detail>.*)"),
        (
            "nccl_shm",
            "failed to extend ",
            r"failed to extend (?P<path>/dev/shm/\S+) to (?P<needed_bytes>\d+) bytes",
        ),
    )
)
"""The same words without the head of a warning: torch's exceptions repeat them below `Last error:`."""

NCCL: tuple[Pattern, ...] = (*_NCCL_RESULT, *_NCCL_INFO, *_NCCL_WARN, *_LAST_ERROR)
