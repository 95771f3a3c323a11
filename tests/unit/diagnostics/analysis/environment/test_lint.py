import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import CAUSES, lint
from diagnostics.analysis.environment.rules_names import nearest

UNKNOWN, OLD, MISREAD, INVALID = (
    "env.unknown_variable",
    "env.deprecated_variable",
    "env.silent_zero",
    "env.invalid_value",
)
FIGHT, WRONG, RISK, DEBUG = (
    "env.contradiction",
    "env.wrong_interface",
    "env.risky_setting",
    "env.debug_left_on",
)
RDMA = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0", "mlx5_1", "mlx5_10"]}
"""A node with two interfaces and three HCAs."""


def found(variables, nccl_version=None, nnodes=None, hardware=None):
    return {
        (one.variable, one.cause_id, one.severity): one for one in lint(variables, nccl_version, nnodes, hardware or {})
    }


def only(variables, **situation):
    (one,) = found(variables, **situation).values()
    return one


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCCL_DISABLE_IB", "NCCL_IB_DISABLE"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_INTERFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_GID", "NCCL_IB_GID_INDEX"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS"),
        ("NCCL_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        ("NCCL_BUFSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_ASYNC_ERROR_HANDELING", "NCCL_ASYNC_ERROR_HANDLING"),
        ("TORCH_NCCL_BLOCKING_WAITS", "TORCH_NCCL_BLOCKING_WAIT"),
        ("GLOO_SOCKET_IFNAMES", "GLOO_SOCKET_IFNAME"),
    ],
)
def test_a_slip_is_named_with_what_was_meant(name, meant):
    one = only({name: "1"})
    assert (one.cause_id, one.severity) == (UNKNOWN, "error")
    assert one.fix == f"rename it to {meant}"
    assert one.message.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("name", "severity", "fix"),
    [
        ("NCCL_CHECKS_DISABLE", "warning", "use NCCL_CHECK_MODE"),
        ("NCCL_WORK_FIFO_DEPTH", "warning", "use NCCL_WORK_FIFO_BYTES"),
        ("NCCL_AGG_CHANNEL_SIZE", "warning", "unset it"),
        ("NCCL_MAX_NCHANNELS", "note", "use NCCL_MAX_CTAS"),
        ("NCCL_ASYNC_ERROR_HANDLING", "note", "use TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "warning", "use TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    ],
)
def test_old_names_are_told_with_their_successor(name, severity, fix):
    one = only({name: "1"})
    assert (one.cause_id, one.severity, one.fix) == (OLD, severity, fix)


def test_a_removed_name_is_fine_where_it_was_still_read():
    assert not lint({"NCCL_PROXY_PROFILE": "1"}, (2, 20, 5), None, {})
    assert found({"NCCL_PROXY_PROFILE": "1"}, nccl_version=(2, 27, 3))
    assert not lint({"NCCL_MNNVL": "1"}, (2, 20, 5), None, {}), "2.20 means all of 2.20"


def test_a_name_that_is_newer_than_nccl():
    one = only({"NCCL_RAS_ENABLE": "1"}, nccl_version=(2, 20, 5))
    assert (one.cause_id, one.severity) == (UNKNOWN, "warning")
    assert "2.24.3" in one.message


@pytest.mark.parametrize(
    "name",
    [
        *("NCCL_VERSION", "NCCL_HOME", "NCCL_TESTS_SPLIT", "NCCL_FASTRAK_IFNAME", "NCCL_GPUDIRECTTCPX_CTRL_DEV"),
        *("OFI_NCCL_PROTOCOL", "RCCL_MSCCL_ENABLE", "TORCH_LOGS", "TORCH_SHOW_DISPATCH_TRACE", "PYTORCH_JIT", "PATH"),
        *("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_INCLUDE_STACK_TRACE", "OMP_NUM_THREADS"),
    ],
)
def test_valid_and_foreign_names_are_left_alone(name):
    assert not lint({name: "1"}, (2, 27, 3), 2, {})


def test_what_nobody_reads_is_a_warning_and_for_a_newer_nccl_a_note():
    assert only({"NCCL_QUUX": "1"}).severity == "warning"
    assert only({"NCCL_QUUX": "1"}, nccl_version=(3, 1)).severity == "note"
    assert "CoreWeave" in only({"NCCL_IB_NET_LATENCY": "1"}).message
    assert "launcher.timeout_s" in only({"NCCL_TIMEOUT": "600"}).fix


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
        ("NCCL_PROTO", "simple,LL129", INVALID, "error", "use of LL, LL128, Simple"),
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
    one = only({name: text})
    assert (one.variable, one.cause_id, one.severity) == (name, cause, severity)
    assert fix is None or one.fix == fix


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
    assert "refuses" in only({"NCCL_ALGO": "Rings"}, nccl_version=(2, 27, 3)).message
    assert "ignores" in only({"NCCL_ALGO": "Rings"}, nccl_version=(2, 20, 5)).message


@pytest.mark.parametrize(
    ("variables", "variable", "severity"),
    [
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "NCCL_P2P_LEVEL", "warning"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5_0"}, "NCCL_IB_DISABLE", "warning"),
        ({"NCCL_NET": "Socket", "NCCL_IB_GID_INDEX": "3"}, "NCCL_NET", "warning"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE", "error"),
        ({"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "8"}, "NCCL_MIN_CTAS", "error"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "NCCL_NSOCKS_PERTHREAD", "error"),
        ({"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, "NCCL_MNNVL_ENABLE", "error"),
        ({"NCCL_COLLNET_ENABLE": "1", "NCCL_NET_PLUGIN": "none"}, "NCCL_COLLNET_ENABLE", "error"),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}, "NCCL_ALGO", "error"),
        ({"NCCL_ALGO": "Ring,CollnetChain", "NCCL_COLLNET_ENABLE": "0"}, "NCCL_ALGO", "warning"),
        (
            {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"},
            "NCCL_IB_SPLIT_DATA_ON_QPS",
            "note",
        ),
        ({"NCCL_DEBUG_SUBSYS": "NET"}, "NCCL_DEBUG_SUBSYS", "note"),
        (
            {"TORCH_FR_BUFFER_SIZE": "10", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20"},
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
            "warning",
        ),
    ],
)
def test_settings_that_fight_each_other(variables, variable, severity):
    fights = [one for one in lint(variables, None, None, {}) if one.cause_id == FIGHT]
    assert [(one.variable, one.severity) for one in fights] == [(variable, severity)]


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL"},
        {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5_0"},
        {"NCCL_IB_DISABLE": "true", "NCCL_IB_HCA": "mlx5_0"},
        {"NCCL_ALGO": "^NVLS", "NCCL_NVLS_ENABLE": "0"},
        {"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "8"},
        {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET"},
    ],
)
def test_settings_that_go_together(variables):
    assert not [one for one in lint(variables, None, None, {}) if one.cause_id == FIGHT]


def test_a_log_file_for_many_processes():
    variables = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}
    assert not lint(variables, None, None, {"nproc": 1})
    one = only(variables, hardware={"nproc": 8})
    assert one.fix == "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log"
    assert not lint({**variables, "NCCL_DEBUG_FILE": "/tmp/nccl.%p"}, None, None, {"nproc": 8})


def test_rdma_that_is_there_but_switched_off():
    one = only({"NCCL_IB_DISABLE": "1"}, nnodes=2, hardware=RDMA)
    assert (one.cause_id, one.severity) == ("env.ib_disabled", "error")
    assert "mlx5_0" in one.message
    assert only({"NCCL_NET": "socket"}, nnodes=2, hardware=RDMA).cause_id == "env.ib_disabled"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 1, RDMA), "within a node it changes nothing"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 2, {"infiniband": []}), "there is no RDMA to use"
    assert not lint({"NCCL_IB_DISABLE": "true"}, None, 2, RDMA)[1:], "true is 0: RDMA is on"
    assert not lint({"NCCL_IB_DISABLE": "1"}, None, 2, {}), "nothing is known of the hardware"


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
    one = only({"NCCL_TOPO_FILE": "/opt/topo.xml"}, hardware={"missing_files": ["NCCL_TOPO_FILE"]})
    assert (one.cause_id, one.severity) == (INVALID, "error")


@pytest.mark.parametrize(
    ("variables", "cause", "severity"),
    [
        ({"NCCL_DEBUG": "INFO"}, DEBUG, "note"),
        ({"NCCL_DEBUG": "TRACE"}, DEBUG, "warning"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}, DEBUG, "warning"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, DEBUG, "warning"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, DEBUG, "warning"),
        ({"TORCH_NCCL_NAN_CHECK": "1"}, DEBUG, "note"),
        ({"NCCL_PROTO": "LL128"}, RISK, "warning"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, RISK, "warning"),
        ({"TORCH_NCCL_ENABLE_MONITORING": "0"}, RISK, "warning"),
    ],
)
def test_what_is_for_debugging_or_risky(variables, cause, severity):
    assert [(one.cause_id, one.severity) for one in lint(variables, None, None, {})] == [(cause, severity)]


def test_the_worst_comes_first():
    listed = lint({"NCCL_DEBUG": "INFO", "NCCL_QUUX": "1", "NCCL_BUFFSIZE": "4M"}, None, None, {})
    assert [one.severity for one in listed] == ["error", "warning", "note"]


@given(
    st.dictionaries(st.sampled_from([*catalogue().nccl, *catalogue().torch, "NCCL_X", "PATH"]), st.text(max_size=20)),
    st.sampled_from([None, (2, 18, 3), (2, 30, 7)]),
    st.sampled_from([None, 1, 2]),
)
def test_no_value_makes_it_fail(variables, nccl_version, nnodes):
    for one in lint(variables, nccl_version, nnodes, {**RDMA, "nproc": 2, "nvlink": True}):
        assert one.cause_id in CAUSES
        assert one.message and one.fix


def test_odd_facts_of_the_machine_are_passed_over():
    odd = {"nproc": "many", "interfaces": 3, "infiniband": None, "nvlink": "yes", "gpus": [1, {"name": None}, {}]}
    assert not lint({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}, None, 2, odd)


def test_nearest_needs_a_likeness():
    assert nearest("NCCL_QQQQ", list(catalogue().nccl), 0.8) is None
