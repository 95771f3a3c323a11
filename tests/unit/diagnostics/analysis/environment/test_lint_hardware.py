"""Rules between variables and the machine: links switched off, interfaces and cards that are not there."""

from diagnostics.analysis.environment.lint import lint
from tests.unit.diagnostics.analysis.environment.lints import RDMA, only

INVALID = "env.invalid_value"
WRONG = "env.wrong_interface"


def test_rdma_that_is_there_but_switched_off():
    finding = only({"NCCL_IB_DISABLE": "1"}, nnodes=2, hardware=RDMA)
    assert (finding.cause_id, finding.severity) == ("env.ib_disabled", "error")
    assert "mlx5_0" in finding.message
    assert only({"NCCL_NET": "socket"}, nnodes=2, hardware=RDMA).cause_id == "env.ib_disabled"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 1, RDMA), "within a node it changes nothing"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 2, {"infiniband": []}), "there is no RDMA to use"
    assert not lint({"NCCL_IB_DISABLE": "true"}, None, 2, RDMA)[1:], "true is 0: RDMA is on"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 2, {}), "nothing is known of the hardware"
    assert only({"NCCL_IB_DISABLE": "1"}, hardware=RDMA).cause_id != "env.ib_disabled", "nor of the number of nodes"


def test_p2p_that_is_there_but_switched_off():
    sxm = {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}, {"name": "NVIDIA H100 80GB HBM3"}]}
    assert only({"NCCL_P2P_DISABLE": "1"}, hardware=sxm).cause_id == "env.p2p_disabled"
    assert only({"NCCL_P2P_LEVEL": "LOC"}, hardware={"nvlink": True}).cause_id == "env.p2p_disabled"
    assert not lint({"NCCL_P2P_DISABLE": "1"}, None, None, {"gpus": [{"name": "NVIDIA GeForce RTX 4090"}] * 2})
    assert not lint({"NCCL_P2P_DISABLE": "1"}, None, None, {"gpus": [{"name": "NVIDIA H200"}]}), "one GPU has no peer"
    assert only({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}).cause_id == "env.p2p_disabled"


def test_interfaces_that_do_not_exist():
    assert only({"NCCL_SOCKET_IFNAME": "ib0"}, hardware=RDMA).cause_id == WRONG
    assert not lint({"NCCL_SOCKET_IFNAME": "eth"}, None, None, RDMA)
    assert not lint({"NCCL_SOCKET_IFNAME": "ib0"}, None, None, {}), "the interfaces are not known"
    assert only({"GLOO_SOCKET_IFNAME": "eth"}, hardware=RDMA).cause_id == WRONG, "gloo knows no prefixes"
    assert only({"NCCL_SOCKET_IFNAME": "lo"}, nnodes=2).cause_id == WRONG
    assert not lint({"NCCL_SOCKET_IFNAME": "lo"}, None, 1, RDMA)
    assert "sockets" in only({"NCCL_IB_HCA": "ibp"}, hardware=RDMA).message
    prefix = only({"NCCL_IB_HCA": "mlx5_1"}, hardware=RDMA)
    assert (prefix.severity, prefix.fix) == ("warning", "NCCL_IB_HCA==mlx5_1")
    assert not lint({"NCCL_IB_HCA": "=mlx5_1"}, None, None, RDMA)


def test_a_file_that_is_missing():
    finding = only({"NCCL_TOPO_FILE": "/opt/topo.xml"}, hardware={"missing_files": ["NCCL_TOPO_FILE"]})
    assert (finding.cause_id, finding.severity) == (INVALID, "error")


def test_odd_facts_of_the_machine_are_passed_over():
    uneven = {"nproc": "many", "interfaces": 3, "infiniband": None, "nvlink": "yes", "gpus": [1, {"name": None}, {}]}
    assert not lint({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}, None, 2, uneven)
