"""Groups of causes that the relations between causes of hangs name together."""

FAILED = ("hang.rank_raised", "hang.rank_oom", "hang.rank_killed")
MISMATCH = ("hang.collective_mismatch", "hang.signature_mismatch", "hang.all_to_all_splits")
OTHER_CALLS = ("hang.conditional_collective", "hang.uneven_iterations")
ASYMMETRIC = (*MISMATCH, *OTHER_CALLS, "hang.unused_parameters")
LATE = ("hang.host_stall", "hang.device_stall", "hang.straggler")
CIRCULAR = ("hang.group_order", "hang.p2p_cycle", "hang.pipeline_mismatch")
REFUSED = (
    "env.shm_too_small", "env.duplicate_gpu", "env.version_mismatch", "env.debug_detail_crash", "env.known_bug",
    "hardware.gpu_fault", "env.job_stopped", "env.container_limits", "env.p2p_broken",
)  # fmt: skip
"""What the environment refuses, and a device that fails, ends ranks by an exception or an abort."""
