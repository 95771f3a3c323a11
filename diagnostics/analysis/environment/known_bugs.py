"""Faults of NCCL, torch, the driver and the kernel that their trackers describe: one table, with versions and sources.

A row says in which versions the fault is, what else it takes, how it shows, and what helps. Holds no verdict.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, ...]
Component = Literal["nccl", "torch", "driver", "kernel"]
Shows = Literal["hang", "crash", "memory", "wrong"]
"""How it shows: the job stands still, ends, needs more memory, or computes something wrong in silence."""


@dataclass(frozen=True, slots=True)
class KnownBug:
    """One fault."""

    component: Component
    since: Version
    """First version that is known to have it; () = any."""
    before: Version
    """First version without it; () = not known."""
    shows: Shows
    what: str
    fix: str
    source: str
    text: str = ""
    """A pattern of what is printed when it strikes; empty = nothing that would tell it from other faults."""
    variable: tuple[str, str] = ("", "")
    """A variable, and the value that it takes; an empty value = as it is by default."""
    arch: str = ""
    """Only on this processor (`aarch64`)."""

    def has(self, version: Version) -> bool:
        """Whether a version of the component has it."""
        return version >= self.since and (not self.before or version < self.before)


def _bug(component: Component, versions: str, shows: Shows, what: str, fix: str, source: str, **more: str) -> KnownBug:
    """One row; versions as `2.29.2-2.29.3` (first with it, first without it), either side may be empty."""
    since, before = (tuple(int(part) for part in side.split(".") if part) for side in versions.split("-"))
    name, _, value = more.pop("variable", "").partition("=")
    return KnownBug(component, since, before, shows, what, fix, source, variable=(name, value), **more)


KNOWN_BUGS: tuple[KnownBug, ...] = (
    _bug("nccl", "2.29.2-2.29.3", "hang", "collectives hang, a regression of this release", "NCCL 2.29.3",
         "pytorch/pytorch#174338"),
    _bug("nccl", "-2.29.3", "hang", "a weak compare-exchange loses the proxy's slots, until all ranks spin",
         "NCCL 2.29.3", "NVIDIA/nccl v2.29.3-1; marin-community/marin#8038", arch="aarch64"),
    _bug("nccl", "2.30.4-2.30.5", "hang", "loading of experts hangs now and then where there is no NVLink",
         "NCCL 2.30.3, or a later one", "NVIDIA/nccl#2167", arch="aarch64"),
    _bug("nccl", "2.29.7-2.29.8", "hang", "many communicators made one after the other hang on PCIe without NVLink",
         "NCCL_CUMEM_ENABLE=0", "NVIDIA/nccl#2379", variable="NCCL_CUMEM_ENABLE="),
    _bug("nccl", "2.26.2-2.26.3", "hang", "a second send to the same peer hangs between nodes",
         "unset NCCL_CUMEM_ENABLE", "NVIDIA/nccl#1721", variable="NCCL_CUMEM_ENABLE=0"),
    _bug("nccl", "2.19-2.20", "hang", "all_to_all deadlocks while it connects", "NCCL 2.20, or NCCL_CUMEM_ENABLE=0",
         "NVIDIA/nccl#1116; NVIDIA/nccl#1134", variable="NCCL_CUMEM_ENABLE="),
    _bug("nccl", "2.19-2.22.3", "memory", "cuMem buffers take memory while CUDA graphs are captured",
         "NCCL 2.22.3, or NCCL_CUMEM_ENABLE=0", "vllm-project/vllm#5091; vllm-project/vllm#24141",
         variable="NCCL_CUMEM_ENABLE="),
    _bug("nccl", "2.18.1-2.18.2", "hang", "bfloat16 reductions by IB SHARP hang with fewer NICs than GPUs",
         "a later NCCL, or NCCL_COLLNET_ENABLE=0", "NCCL 2.18.1 release notes", variable="NCCL_COLLNET_ENABLE=1"),
    _bug("nccl", "2.18.1-2.18.2", "wrong", "LL128 over a tree corrupts data where NIC and GPU share a PCI switch",
         "a later NCCL, NCCL_IB_PCI_RELAXED_ORDERING=0 or NCCL_PROTO=^LL128", "NCCL 2.18.1 release notes"),
    _bug("nccl", "2.7-2.18.1", "hang", "irregular send and receive patterns (alltoallv) hang", "NCCL 2.18.1",
         "NCCL 2.18.1 release notes"),
    _bug("nccl", "2.7-2.8.4", "hang", "imbalanced send and receive operations hang", "NCCL 2.8.4",
         "NCCL 2.8.4 release notes"),
    _bug("nccl", "2.17.1-2.18", "hang", "a socket is closed without a FIN now and then", "NCCL 2.18",
         "pytorch/pytorch#97843"),
    _bug("nccl", "2.14-2.17", "hang", "kernels launched one by one hang", "NCCL 2.17, or unset CUDA_LAUNCH_BLOCKING",
         "pytorch/pytorch#97843; NVIDIA/nccl#750", variable="CUDA_LAUNCH_BLOCKING=1"),
    _bug("nccl", "2.7.3-2.7.6", "crash", "faults on GA100", "NCCL 2.7.6", "pytorch/pytorch#42645"),
    _bug("nccl", "-", "crash", "NVLink SHARP cannot be bound: Fabric Manager or NVSwitch are not in order",
         "restart the Fabric Manager or the node; NCCL_NVLS_ENABLE=0 goes round it",
         "NVIDIA/nccl#1788; pytorch/pytorch#177472",
         text=r"NVLink SHARP \(NVLS\) Multicast memory|nvls\.cc:\d+ NCCL WARN Cuda failure 401"),
    _bug("nccl", "-", "crash", "cuMem allocations on the host crash on nodes with uneven NUMA memory",
         "driver 595, or NCCL_CUMEM_HOST_ENABLE=0", "NVIDIA/nccl#2106", text=r"\bncclCuMemHostEnable\b"),
    _bug("torch", "2.7.0-2.7.1", "hang", "collectives hang at random where init_process_group gets a device_id",
         "torch 2.7.1, or TORCH_NCCL_USE_COMM_NONBLOCKING=0", "pytorch/pytorch#153960",
         variable="TORCH_NCCL_USE_COMM_NONBLOCKING="),
    _bug("torch", "2.6.0-2.7.0", "wrong", "FSDP2 loads state dicts wrongly", "torch 2.7.0",
         "NVIDIA-NeMo/RL#680; volcengine/verl#1517"),
    _bug("torch", "2.10.0-2.10.1", "memory", "FSDP2 keeps DTensorSpec objects for ever", "another torch",
         "pytorch/pytorch#181761"),
    _bug("driver", "560-570", "hang", "peer access between GPUs hangs", "driver 570; NCCL_P2P_DISABLE=1 goes round it",
         "dmlc/xgboost#11242", variable="NCCL_P2P_DISABLE="),
    _bug("kernel", "-5.5", "hang", "shared memory of processes may hang, as Accelerate warns", "Linux 5.5 or later",
         "huggingface/accelerate#1929; modelscope/ms-swift#283"),
)  # fmt: skip
"""Each source was looked up; where a tracker names no version without it, the range ends behind the one named."""


def struck(text: str) -> KnownBug | None:
    """Return the fault whose own text a line holds."""
    return next((bug for bug in KNOWN_BUGS if bug.text and re.search(bug.text, text)), None)


def possible(versions: Mapping[str, Version], variables: Mapping[str, str], arch: str) -> Iterable[KnownBug]:
    """Yield the faults that a job may meet by its versions, variables and processor; those that print a text do so.

    Args:
        versions: component -> version; components that are not known are left out.
        variables: of all ranks.
        arch: of the processor; empty = not known.
    """
    for bug in KNOWN_BUGS:
        name, value = bug.variable
        given = variables.get(name, "")
        usual = "0" if name.endswith("DISABLE") else "1"
        fits = not name or (given == value if value else given in ("", usual))
        here = bug.component in versions and bug.has(versions[bug.component])
        if here and fits and not bug.text and bug.arch in ("", arch):
            yield bug
