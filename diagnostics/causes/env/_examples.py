"""Minimal leftovers of jobs with a cause in their environment: the examples of the causes."""

import json
from collections.abc import Mapping

from diagnostics.contract.causes import Example

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
