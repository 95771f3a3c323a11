"""`env.ib_disabled`: RDMA that is there, and switched off between nodes."""

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.env.evidence import decide, dtk_run, job

RDMA = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0"]}


def test_rdma_switched_off_on_two_nodes():
    run = dtk_run({"NCCL_IB_DISABLE": "1"}, nodes=2, hardware=RDMA)
    result = decide(job(run=run))["env.ib_disabled"]
    assert (result.status, result.confidence) == ("confirmed", 0.95)
    assert "2 nodes" in text_of(result).summary and "mlx5_0" in text_of(result).summary
    assert decide(job(run=dtk_run({"NCCL_IB_DISABLE": "1"}, hardware=RDMA)))["env.ib_disabled"].status == "ruled_out"


def test_rdma_switched_off_where_the_machine_is_not_known_is_left_open():
    result = decide(job({-1: {"NCCL_IB_DISABLE": "1", "PATH": "/bin"}}))["env.ib_disabled"]
    assert result.status == "undecided"
    assert "how many nodes" in text_of(result).summary


def test_gloo_is_not_concerned_by_nccls_settings():
    run = dtk_run({"NCCL_IB_DISABLE": "1"}, nodes=2, hardware=RDMA, backend="gloo")
    assert decide(job(run=run))["env.ib_disabled"].status == "ruled_out"


OFI = "n1:961:3140 [6] nccl_net_ofi_create_plugin:1067 NCCL WARN NET/OFI aws-ofi-nccl initialization failed"
IB = "n1:961:3140 [6] NCCL INFO Failed to initialize NET plugin IB"
OTHER = "n1:961:3140 [6] NCCL INFO Failed to initialize NET plugin FasTrak"


@pytest.mark.parametrize(
    ("failed", "net", "seen"),
    [
        (OFI, "Socket", True),
        (OFI, "Socket [repeated 15x across cluster]", True),
        (OTHER, "Socket", True),
        (IB, "Socket", False),  # What NCCL says on every machine without such a card.
        (OFI, "IB", False),
        ("", "Socket", False),
    ],
)
def test_a_plugin_that_failed_before_sockets_were_chosen(tmp_path, failed, net, seen):
    (tmp_path / "train.log").write_text(f"{failed}\nn1:961:3140 [6] NCCL INFO Using network {net}\n")
    suspected = [each.finding for each in diagnose(tmp_path).findings if each.finding.suspected]
    assert [each.cause for each in suspected] == ["env.ib_disabled"] * seen
