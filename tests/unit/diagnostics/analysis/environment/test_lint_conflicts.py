"""Rules between variables: settings that fight each other, that risk the job, that are left on."""

import pytest

from diagnostics.analysis.environment.lint import lint
from tests.unit.diagnostics.analysis.environment.lints import only, worded

FIGHT = "env.contradiction"
RISK = "env.risky_setting"
DEBUG = "env.debug_left_on"


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
    fights = [item for item in map(worded, lint(variables, None, None, {})) if item.cause_id == FIGHT]
    assert [(fight.variable, fight.severity) for fight in fights] == [(variable, severity)]


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
    assert not [item for item in map(worded, lint(variables, None, None, {})) if item.cause_id == FIGHT]


def test_a_log_file_for_many_processes():
    variables = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}
    assert not lint(variables, None, None, {"nproc": 1})
    finding = only(variables, hardware={"nproc": 8})
    assert finding.fix == "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log"
    assert not lint({**variables, "NCCL_DEBUG_FILE": "/tmp/nccl.%p"}, None, None, {"nproc": 8})


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
    assert [(item.cause_id, item.severity) for item in map(worded, lint(variables, None, None, {}))] == [
        (cause, severity)
    ]
