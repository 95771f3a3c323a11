"""Minimal leftovers of jobs with a cause in their environment."""

import json
from collections.abc import Mapping

from tests.unit.diagnostics.causes.examples import Example

_HARDWARE = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0"], "nvlink": True}


def dtk_run(environment: Mapping[str, str], nodes: int = 1) -> Example:
    """Return the manifest of a run with these variables."""
    manifest = {
        "schema_version": 1,
        "run_id": "example",
        "environment": dict(environment),
        "hardware": _HARDWARE,
        "topology": {"world_size": 2 * nodes, "nproc": 2, "nodes": nodes},
    }
    config = "launcher:\n  backend: nccl\n"
    return Example(lambda: {"manifest.json": json.dumps(manifest), "config.yaml": config})


def log(line: str, *ranks: int) -> Example:
    """Return a log with one line of a library, and the ranks to blame."""
    return Example(lambda: {"train.log": f"step 1 loss 3.2\n{line}\n"}, ranks)


def crash_under_detail() -> Example:
    """Return torchrun's summary of a rank that died by SIGSEGV, and the variable in its log."""
    summary = (
        "train.py FAILED\n------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-05_10:00:00\n  host      : node0\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -11 (pid: 4711)\n  error_file: <N/A>\n"
        "  traceback : Signal 11 (SIGSEGV) received by PID 4711\n"
    )
    run = dtk_run({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    return Example(lambda: {**run.files(), "logs/launcher.log": summary}, (1,))


EXAMPLES = {
    "env.contradiction": dtk_run({"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}),
    "env.debug_detail_crash": crash_under_detail(),
    "env.debug_left_on": dtk_run({"NCCL_DEBUG": "TRACE"}),
    "env.deprecated_variable": dtk_run({"NCCL_CHECKS_DISABLE": "1"}),
    "env.duplicate_gpu": log("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", 0, 1),
    "env.duplicate_rank": log(
        "gpu1:77:90 [0] bootstrap.cc:1 NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already checked in", 3
    ),
    "env.ib_disabled": dtk_run({"NCCL_IB_DISABLE": "1"}, nodes=2),
    "env.invalid_value": dtk_run({"NCCL_P2P_LEVEL": "nvl"}),
    "env.job_stopped": log(
        "W0920 09:10:41.194000 84 torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting"
    ),
    "env.p2p_disabled": dtk_run({"NCCL_P2P_DISABLE": "1"}),
    "env.risky_setting": dtk_run({"NCCL_PROTO": "LL128"}),
    "env.shm_too_small": log(
        "[rank1]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that ...", 1
    ),
    "env.silent_zero": dtk_run({"NCCL_BUFFSIZE": "4M"}),
    "env.unknown_variable": dtk_run({"NCCL_SOCKET_IFNAM": "eth0"}),
    "env.version_mismatch": log(
        "[rank0]: NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22005", 0
    ),
    "env.wrong_interface": dtk_run({"NCCL_SOCKET_IFNAME": "=ens3"}, nodes=2),
}
