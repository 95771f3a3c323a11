"""Rules about values: what NCCL and torch misread, refuse or ignore."""

import pytest

from diagnostics.analysis.environment.lint import lint
from tests.unit.diagnostics.analysis.environment.lints import only

MISREAD = "env.silent_zero"
INVALID = "env.invalid_value"
WRONG = "env.wrong_interface"


@pytest.mark.parametrize(
    ("name", "text", "cause", "severity", "fix"),
    [
        ("NCCL_IB_DISABLE", "true", MISREAD, "error", "NCCL_IB_DISABLE=1"),
        ("NCCL_P2P_DISABLE", "True", MISREAD, "error", "NCCL_P2P_DISABLE=1"),
        ("NCCL_NVLS_ENABLE", "off", MISREAD, "note", "NCCL_NVLS_ENABLE=0"),
        ("NCCL_BUFFSIZE", "4M", MISREAD, "error", "write a plain number"),
        ("NCCL_BUFFSIZE", "010", MISREAD, "error", "write a plain number"),
        ("NCCL_IB_TC", '"106"', MISREAD, "error", "write a number"),
        ("NCCL_IB_TIMEOUT", "40", INVALID, "warning", "use 20 (about 30 s) to 22 (about 2 min)"),
        ("NCCL_CROSS_NIC", "3", INVALID, "warning", "use 0, 1, 2"),
        ("NCCL_SOCKET_NTHREADS", "32", INVALID, "warning", "use 1 to 16"),
        ("NCCL_P2P_LEVEL", "nvl", INVALID, "error", "NCCL_P2P_LEVEL=NVL"),
        ("NCCL_NET_GDR_LEVEL", "NEAR", INVALID, "error", "use one of LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS"),
        ("NCCL_SOCKET_FAMILY", "af_inet", INVALID, "error", "use exactly AF_INET, AF_INET6"),
        ("NCCL_DEBUG", "VERBOSE", INVALID, "warning", "use VERSION, WARN, INFO, ABORT, TRACE"),
        ("NCCL_ALGO", "Rings", INVALID, "error", None),
        ("NCCL_PROTO", "simple,LL129", INVALID, "error", "choose from LL, LL128, Simple"),
        ("NCCL_COMM_ID", "10.0.0.1", INVALID, "error", "write host:port"),
        ("NCCL_SOCKET_IFNAME", "eth0, eth1", INVALID, "error", None),
        ("NCCL_TOPO_FILE", "~/topo.xml", INVALID, "error", None),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", INVALID, "error", "use 1 or 0"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ten", INVALID, "error", "write a number"),
        ("TORCH_DISTRIBUTED_DEBUG", "ON", INVALID, "error", "use OFF, INFO, DETAIL"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segment:True", INVALID, "error", "did you mean expandable_segments?"),
        ("GLOO_SOCKET_IFNAME", "=eth0", WRONG, "error", "GLOO_SOCKET_IFNAME=<name of the interface>"),
        ("GLOO_SOCKET_IFNAME", "^docker0,lo", WRONG, "error", None),
    ],
)
def test_a_value_that_means_something_else(name, text, cause, severity, fix):
    finding = only({name: text})
    assert (finding.variable, finding.cause_id, finding.severity) == (name, cause, severity)
    assert fix is None or finding.fix == fix


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_DISABLE", ""),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_NET_GDR_READ", "-2"),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_BUFFSIZE", "4194304 "),
        ("NCCL_ALGO", "ring"),
        ("NCCL_ALGO", "allreduce:Ring,Tree;broadcast:NVLS"),
        ("NCCL_DEBUG", "warn"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_NET_GDR_LEVEL", "5"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "YES"),
        ("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1"),
    ],
)
def test_a_good_value_is_left_alone(name, text):
    assert not lint({name: text}, None, None, {})


def test_the_effect_of_an_unknown_algorithm_depends_on_the_version():
    assert "fails to initialize" in only({"NCCL_ALGO": "Rings"}, nccl_version=(2, 27, 3)).message
    assert "ignores" in only({"NCCL_ALGO": "Rings"}, nccl_version=(2, 20, 5)).message
