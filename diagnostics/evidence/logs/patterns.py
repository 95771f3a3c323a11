"""What a line of a log can say: one table of kinds, each with the words it is found by and the fields it has.

Sources: torch's ProcessGroupNCCL.cpp, reducer.cpp, CUDACachingAllocator.cpp and gloo's transports of all 2.x,
NCCL's sources to 2.30. Group names are the field names; `fields.decode` turns them into numbers. Reads no file.

Kinds:
- `watchdog_timeout` group_rank, seq, op, numel_in, numel_out, timeout_ms, ran_ms, and group, guid, desc, pg_rank where
  the line names its process group; `watchdog_status` group, guid, desc, pg_rank, work, last_enqueued, last_started,
  last_completed; `watchdog_abort`, `monitor_stuck` stuck_s; `flight_dump_signal`
- `collective_stack` file, line, function, op: no pattern, but the stack that torch prints of a timed-out collective
- `desync_timeout` op, seq; `desync_report`; `desync_rank` last_op_seq, missing_seq
- `dist_backend_error` error, version; `nccl_result` result; `nccl_last_error`; `nccl_version` version, cuda
- `variable` name, value (as `env` prints them); `nccl_env` name, value; `nccl_env_invalid`; `nccl_net` net;
  `nccl_ib` devices; `nccl_no_ib`; `nccl_socket` interfaces; `nccl_bootstrap` interface; `nccl_plugin_failed`;
  `nccl_init` phase, nranks; `nccl_transport` transport, net; `nccl_no_p2p`, `nccl_nvls` available
- `nccl_ib_error` peer, status, vendor_error, local_gid, remote_gid, device; `nccl_ib_async` device, port, event,
  failed;
  `nccl_peer_closed` peer; `nccl_connect` peer, why; `nccl_duplicate_rank` duplicate
  `nccl_shm` needed_bytes; `nccl_duplicate_gpu` first, second, gpu; `nccl_version_mismatch` detail; `nccl_warn`
- `cuda_oom` requested_bytes, gpu, total_bytes, free_bytes, allocated_bytes, reserved_bytes,
  reserved_unallocated_bytes, in_use_bytes, private_pool_bytes, other_bytes, allowed_bytes; `cuda_error` error;
  `cpu_oom` requested_bytes; `kernel_oom` pid, name, rss_kib, cgroup, constraint, kills;
  `xid` device, code, pid; `worker_bus_error` pid; `link_down` device
- `gloo_mismatch` received_bytes, expected_bytes; `gloo_closed` peer; `gloo_reset` peer; `gloo_timeout` timeout_ms,
  direction
- `monitored_barrier` ranks, timeout_ms; `collective_mismatch_text` rank_a, call_a, rank_b, call_b
- `ddp_unused`; `ddp_unused_names` names; `ddp_unused_indices` indices; `ddp_marked_twice`; `ddp_shape_mismatch`
  index, sizes
- `rendezvous_timeout` joined, expected, timeout_s; `store_timeout` peer, port, timeout_ms; `store_key_timeout` key;
  `missing_variable` name; `interface_missing` name; `port_in_use` port; `no_nccl`
- `torchrun_list` ranks, pids: no pattern, but torchrun's list of failures (`evidence/logs/launcher.py`)
- `torchrun_failed` exit_code, local_rank, pid; `torchrun_signal` signal, pid; `srun_task` task, why; `world_size`
  nranks
- `non_finite_loss` figure, value, step (or bar: where the progress bar stands); the first of a rank
- `handled_error`, `side_error` type, message, at, frames: no pattern, but an exception behind which the log goes on, or
  that ends no process, as of a side thread (`logs/streams.py`)
"""

from diagnostics.evidence.logs.fields import PEER, SIZE, Pattern
from diagnostics.evidence.logs.fields import pattern as _p
from diagnostics.evidence.logs.patterns_nccl import NCCL

_GROUP = (
    r"\[PG (?:ID )?(?P<group>\w{1,80})(?: PG GUID (?P<guid>[^\s()\]]{1,80}))?(?: ?\((?P<desc>[^()]{0,80})\))? "
    r"Rank (?P<pg_rank>\d{1,7})\]"
)
"""`[PG 1 Rank 0]` to 2.3, `[PG 0 (default_pg) Rank 0]` in 2.4, `[PG ID 0 PG GUID 0(default_pg) Rank 0]` since 2.5."""
_STATUS = (
    rf"^(?:.*?{_GROUP})?"
    r"(?:.*?(?:at work|at NCCL work|at work sequence id): (?P<work>-?\d+))?"
    r".*?[Ll]ast enqueued (?:NCCL )?work: (?P<last_enqueued>-?\d+)"
    r"(?:, last started (?:NCCL )?work: (?P<last_started>-?\d+))?"
    r"(?:, last completed (?:NCCL )?work: (?P<last_completed>-?\d+))?"
)
_WATCHDOG = (
    _p(
        "watchdog_timeout",
        "Watchdog caught collective operation timeout",
        rf"(?:{_GROUP}.{{0,120}}?)?(?:\[Rank (?P<group_rank>\d{{1,7}})\] )?"
        r"Watchdog caught collective operation timeout: WorkNCCL\("
        r"(?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+),(?: NumelIn=(?P<numel_in>\d+),)?"
        r"(?: NumelOut=(?P<numel_out>\d+),)?"
        r"(?: .*?)?Timeout\(ms\)=(?P<timeout_ms>\d+)\)(?: ran for (?P<ran_ms>\d+) milliseconds)?",
        "group_rank",
    ),
    _p("watchdog_status", "last enqueued", _STATUS),
    _p("watchdog_status", "Last enqueued", _STATUS),
    _p("watchdog_abort", "taking the entire process down", r"To avoid data inconsistency"),
    _p(
        "monitor_stuck",
        "watchdog got stuck",
        r"watchdog got stuck for (?P<stuck_s>\d+) ?(?:seconds|s|milliseconds)\b.*without making progress",
    ),
    _p(
        "flight_dump_signal",
        "dump signal from another rank",
        r"Observed flight recorder dump signal from another rank"
        r"(?: via TCPStore)?(?:.*rank (?P<source>\d+))?",
    ),
    _p(
        "desync_timeout",
        "Timeout at collective",
        r"\[(?P<stated>\d+)\] Timeout at collective: (?P<op>\w+), #(?P<seq>\d+)",
        "stated",
    ),
    _p("desync_report", "that caused the desync", r"lagging/dead/mismatched ranks that caused the desync"),
    _p(
        "desync_rank",
        "join collective",
        r"\[(?P<stated>\d+)\] (?:finished collective #(?P<last_seq>\d+)|joined but didn't finish collective)"
        r".*?(?:didn't join collective #(?P<missing_seq>\d+)|#(?P<stuck_seq>\d+))",
        "stated",
    ),
)

_CUDA_OOM = (
    _p(
        "cuda_oom",
        "out of memory",
        r"CUDA out of memory\."
        r"(?: Allocation was preemptively rejected because it would exceed (?P<limit>\w+) limit\.)? "
        rf"(?:Tried to allocate|Requested size:) (?P<requested_bytes>{SIZE})",
    ),
    _p("cuda_error", "CUDA error: ", r"CUDA error: (?P<error>[^\n]+)"),
    _p("cuda_error", "Cuda failure ", r"Cuda failure (?:\d+ )?'(?P<error>[^']+)'"),
    _p(
        "cpu_oom",
        "DefaultCPUAllocator",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): "
        r"you tried to allocate (?P<requested_bytes>\d+) bytes",
    ),
    _p(
        "kernel_oom",
        "Killed process ",
        r"(?:(?P<cgroup>[Mm]emory cgroup) out of memory|[Oo]ut of memory)?:? ?Killed process (?P<pid>\d+)"
        r"(?: \((?P<name>[^)]{1,80})\))?(?:.*?anon-rss:(?P<rss_kib>\d+)kB)?",
    ),
    *(
        _p("kernel_oom", word, r"oom-kill:constraint=(?P<constraint>\w+)|Detected (?P<kills>\d+) oom[_-]kill event")
        for word in ("oom_kill", "oom-kill")
    ),
    _p("kernel_oom", "OOMKilled", r"\bOOMKilled\b"),
    _p("worker_bus_error", "encountered in worker", r"Unexpected bus error encountered in worker"),
    _p(
        "worker_bus_error",
        "is killed by signal",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)[^)]*\) is killed by signal: Bus error",
    ),
    _p("link_down", "Link down", r"\b(?P<driver>mlx[45]_\w+|bnxt_en|i40e|ice|ixgbe) \S+ (?P<device>\w+): Link down"),
    _p("xid", "NVRM: Xid", r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?"),
)

_GLOO = (
    _p(
        "gloo_mismatch",
        "op.preamble.length <= op.nbytes",
        r"op\.preamble\.length <= op\.nbytes\.?\s*(?P<received_bytes>\d+) vs (?P<expected_bytes>\d+)",
    ),
    _p("gloo_closed", "onnection closed by peer", rf"Connection closed by peer {PEER}"),
    _p(
        "gloo_reset",
        "onnection reset by peer",
        rf"(?:(?:Read|Write|Send|Recv) (?:error|timeout)|error).*?{PEER}?: Connection reset by peer",
    ),
    _p(
        "gloo_timeout",
        "Timed out waiting ",
        r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<direction>send|recv) operation",
    ),
    _p(
        "monitored_barrier",
        "monitoredBarrier",
        r"(?:\[Rank (?P<reporter>\d+)\]: )?Ranks? (?P<ranks>\d+(?:, ?\d+)*) "
        r"failed to pass monitoredBarrier in (?P<timeout_ms>\d+) ?ms",
    ),
    _p(
        "collective_mismatch_text",
        "Detected mismatch between collectives",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank_a>\d+) is running collective: "
        r"(?:CollectiveFingerPrint\()?(?P<call_a>.*?)\)?, but Rank (?P<rank_b>\d+) is running collective: "
        r"(?:CollectiveFingerPrint\()?(?P<call_b>.*?)\)?\.?$",
    ),
)

_DDP = (
    _p(
        "ddp_unused",
        "Expected to have finished reduction",
        r"Expected to have finished reduction in the prior iteration",
    ),
    _p(
        "ddp_unused_names",
        "did not receive grad",
        r"Parameters which did not receive grad for rank (?P<stated>\d+): (?P<names>.+)$",
        "stated",
    ),
    _p(
        "ddp_unused_indices",
        "did not receive grad",
        r"Parameter indices which did not receive grad for rank (?P<stated>\d+): (?P<indices>[\d ,.]+)",
        "stated",
    ),
    _p("ddp_marked_twice", "Expected to mark a variable", r"Expected to mark a variable ready only once"),
    _p("ddp_marked_twice", "marked", r"marked (?:as )?ready twice"),
    _p(
        "ddp_shape_mismatch",
        "appears not to match",
        r"\[(?P<stated>\d+)\]: params\[(?P<index>\d+)\] in this process "
        r"with (?:sizes (?P<sizes>\[[^\]]*\])|\w+).*appears not to match",
        "stated",
    ),
)

_STARTUP = (
    _p(
        "rendezvous_timeout",
        "clients joined",
        r"Timed out after (?P<timeout_s>\d+) seconds waiting for clients\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) clients joined",
    ),
    _p("rendezvous_timeout", "RendezvousTimeoutError", r"RendezvousTimeoutError(?:: (?P<detail>.*))?"),
    _p(
        "store_timeout",
        "client socket has timed out",
        r"client socket has timed out after (?P<timeout_ms>\d+) ?ms "
        r"while trying to connect to \((?P<peer>[^,]+), (?P<port>\d+)\)",
    ),
    _p("store_key_timeout", "wait timeout after", r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<key>\S+)"),
    _p("store_closed", "DistNetworkError", r"DistNetworkError: (?P<detail>(?!The client socket has timed).*)"),
    _p("missing_variable", "environment variable ", r"environment variable (?P<name>\w+) expected, but not set"),
    _p("interface_missing", "Unable to find address for", r"Unable to find (?:address|interface) for: (?P<name>\S+)"),
    _p("port_in_use", "EADDRINUSE", r"^(?:.*?port: (?P<port>\d+))?.*EADDRINUSE"),
    _p("no_nccl", "have NCCL built in", r"Distributed package doesn't have NCCL built in"),
    _p("world_size", "global_world_sizes=", r"global_world_sizes=\[(?P<nranks>\d+)"),
)

_LAUNCHER = (
    _p(
        "torchrun_failed",
        "failed (exitcode: ",
        r"failed \(exitcode: (?P<exit_code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    _p("torchrun_signal", "closing signal ", r"Sending process (?P<pid>\d+) closing signal (?P<signal>\w+)"),
    _p("srun_task", "srun: error: ", r"srun: error: (?P<host>\S+): tasks? (?P<ranks>\d+(?:[-,]\d+)*): (?P<why>.*)$"),
)

_LOSS = tuple(
    _p(
        "non_finite_loss",
        f"{before}{value}",
        r"(?i:(?:\b(?:step|iter(?:ation)?)\b\W{0,3}(?P<step>\d{1,9}).*?|\b(?P<bar>\d{1,9})/\d{1,9}\b.*?)?"
        r"(?<![\w/])(?<!best )(?<!min )(?<!lowest )(?<!val )(?<!valid )(?<!validation )(?<!eval )(?<!test )"
        r"(?P<figure>(?:(?:train(?:ing)?|lm|total)[_/ ])?loss)[\"']?[ :=(]{1,3}"
        r"(?P<value>[-+]?(?:nan|inf(?:inity)?))\b)",
    )
    for value in ("nan", "NaN", "inf", "Inf")
    for before in (" ", "=", ":", "-")
)
"""A loss that a script prints. The best one so far begins at infinity, so that does not count."""

TABLE: tuple[Pattern, ...] = (
    *_WATCHDOG,
    *NCCL,
    *_CUDA_OOM,
    *_GLOO,
    *_DDP,
    *_STARTUP,
    *_LAUNCHER,
    *_LOSS,
)
