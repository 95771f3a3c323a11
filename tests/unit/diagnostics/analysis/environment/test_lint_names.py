"""Rules about names: slips, old names with their successors, names that nobody reads."""

import pytest

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.rules_values import meant_by
from tests.unit.diagnostics.analysis.environment.lints import lints_of, only

UNKNOWN = "env.unknown_variable"
OLD = "env.deprecated_variable"


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
    finding = only({name: "1"})
    assert (finding.cause_id, finding.severity) == (UNKNOWN, "error")
    assert finding.fix == f"rename it to {meant}"
    assert finding.message.endswith(f"did you mean {meant}?")


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
    finding = only({name: "1"})
    assert (finding.cause_id, finding.severity, finding.fix) == (OLD, severity, fix)


def test_a_removed_name_is_fine_where_it_was_still_read():
    assert not lint({"NCCL_PROXY_PROFILE": "1"}, (2, 20, 5), None, {})
    assert lints_of({"NCCL_PROXY_PROFILE": "1"}, nccl_version=(2, 27, 3))
    assert not lint({"NCCL_MNNVL": "1"}, (2, 20, 5), None, {}), "2.20 means all of 2.20"


def test_a_name_that_is_newer_than_nccl():
    finding = only({"NCCL_RAS_ENABLE": "1"}, nccl_version=(2, 20, 5))
    assert (finding.cause_id, finding.severity) == (UNKNOWN, "warning")
    assert "2.24.3" in finding.message


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


def test_a_name_that_a_newer_nccl_may_read_is_a_slip_only_if_hardly_a_letter_differs():
    resembles, typed = {"NCCL_NET_USE_CUDA_MEMCPY": "1"}, {"NCCL_IB_TIMEOUTS": "22"}
    assert only(resembles, nccl_version=(2, 27, 3)).fix == "rename it to NCCL_P2P_USE_CUDA_MEMCPY"
    assert only(resembles, nccl_version=(3, 1)).severity == "note"
    assert only(typed, nccl_version=(3, 1)).fix == "rename it to NCCL_IB_TIMEOUT"


def test_nearest_needs_a_likeness():
    assert not meant_by("NCCL_QQQQ", catalogue().nccl, 0.8)


@pytest.mark.parametrize(("nccl_version", "text"), [((2, 16), False), ((2, 27, 3), True), (None, True)])
def test_a_deprecated_name_is_told_from_the_version_that_prefers_another(nccl_version, text):
    assert bool(lints_of({"NCCL_MAX_NCHANNELS": "4"}, nccl_version=nccl_version)) == text
