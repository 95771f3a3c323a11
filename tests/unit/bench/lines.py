"""What rank 0 of a small launch says."""

from typing import Any

LINES: list[dict[str, Any]] = [
    {"about": {"world_size": 2, "device": "x86_64", "host": "here", "torch": "2.13.0", "nccl": None}},
    {"at": "warm-up: all_reduce of 1 KiB"},
    {"cell": {"operation": "all_reduce", "size_bytes": 1024, "count": 256, "calls": 20, "wrong_elements": 0}},
    {"left_out": {"operation": "send_recv", "size_bytes": 1024, "reason": "the time limit"}},
    {"at": "repeat 1 of 3: all_reduce"},
    {"pass": {"all_reduce 1024": 0.001}},
    {"pass": {"all_reduce 1024": 0.004}},
    {"pass": {"all_reduce 1024": 0.002}},
]
