"""`env.ib_disabled`: RDMA that is there, and switched off between nodes."""

from diagnostics.contract.findings import text_of
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
