"""`env.p2p_broken` from the kernel's, NCCL's and CUDA's texts; it turns the advice about NCCL_P2P_DISABLE round."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose

# ruff: noqa: E501
ID = "env.p2p_broken"
AMD = (
    "[ 77.1] nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001d address=0xf0000000 flags=0x0030]\n"
)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (AMD, "iommu=pt"),
        ("[ 77.1] DMAR: [DMA Read NO_PASID] Request device [41:00.0] fault addr 0xf0000000 [fault reason 0x06]\n", "iommu=pt"),
        ("h:1:2 [0] graph/paths.cc:9 NCCL WARN P2P is disabled between NVLINK connected GPUs 0 and 1\n", "topo -p2p"),
        ("[rank0]: Traceback (most recent call last):\n[rank0]:   File \"t.py\", line 3, in <module>\n"
         "[rank0]: RuntimeError: CUDA error: peer access is not supported between these two devices\n",
         "NCCL_P2P_DISABLE=1"),
        ("[TP1] worker: cuIpcOpenMemHandle: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\n", "NCCL_P2P_DISABLE=1"),
        ("Failed: Cuda error a.cuh:307 'peer access is not supported between these two devices'\n", "NCCL_P2P_DISABLE=1"),
        ("terminating: cudaMemcpyPeer: peer mapping resources exhausted\n", "at most 8 GPUs"),
        ("h:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n", "--gpus-per-node"),
        ("h:1:2 [0] transport/p2p.cc:237 NCCL WARN Cuda failure 'invalid argument'\n", "NCCL_P2P_DISABLE=1"),
        ("h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<54> with status=4 opcode=0\n",
         "NCCL_NET_GDR_LEVEL=0"),
        ("h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IBP:Got completion with error 4, opcode 1, len 0, vendor err 81\n",
         "NCCL_NET_GDR_LEVEL=0"),
    ],
)  # fmt: skip
def test_each_text(tmp_path: Path, line: str, change: str) -> None:
    (tmp_path / "train.log").write_text(line + "h:1:2 [0] NCCL INFO transport.cc:40 -> 1\n")
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == ID and change in text_of(first).remedies[0].change


def test_a_log_without_it_does_not_rule_it_out(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("h:1:2 [0] NCCL INFO Using network Socket\nKeyError: 3\n")
    assert {finding.finding.status for finding in diagnose(tmp_path).findings if finding.finding.cause == ID} == {
        "undecided"
    }
