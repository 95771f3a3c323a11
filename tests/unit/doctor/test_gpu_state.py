"""The state of each device: clocks, throttling, ECC, rows, processes, NVLink, PCIe."""

import os
import subprocess
import sys

import pytest

from dtk.doctor import gpu_state
from tests.unit.doctor.machines import checks_of

CHECKS = checks_of("gpu_state")
BAD = [
    ("clocks", {"0.busy": 90, "0.sm_clock": 600}, "warning", "busy at 600 MHz of 1980 MHz", "nvidia-smi -i 0 -rgc"),
    ("clocks", {"1.max_clock": 1410}, "warning", "different highest clocks: 1410, 1980 MHz", "nvidia-smi -rgc"),
    ("clocks", {"1.power_limit": 300000}, "warning", "GPU 1: power limit 300 W of 700 W", "nvidia-smi -i 1 -pl 700"),
    ("clocks", {"1.throttle": 0x2}, "warning", "GPU 1: application clocks are set", "nvidia-smi -i 1 -rac"),
    ("throttling", {"1.throttle": 0x48, "1.celsius": 91}, "failure", "hardware_thermal at 91 C", "-i 1"),
    ("throttling", {"0.throttle": 0x80}, "failure", "GPU 0 is throttled: hardware_power_brake", "-i 0"),
    ("throttling", {"0.throttle": 0x20}, "warning", "GPU 0 is throttled: software_thermal", "PERFORMANCE,TEMPERATURE"),
    ("throttling", {"throttle": "!13", "0.throttle_old": 0x40}, "failure", "hardware_thermal", "-i 0"),
    ("throttling", {"0.throttle": "!15"}, "failure", "GPU 0 stopped responding: GPU is lost", "reboot"),
    ("ecc", {"1.ecc_uncorrected": 3}, "failure", "GPU 1: 3 uncorrected ECC errors since its last", "--gpu-reset -i 1"),
    ("ecc", {"1.ecc_uncorrected_ever": 2}, "warning", "GPU 1: 2 uncorrected ECC errors in its lifetime", "-d ECC -i 1"),
    ("ecc", {"0.ecc_corrected": 5000}, "warning", "GPU 0: 5,000 corrected ECC errors", "-d ECC -i 0"),
    ("ecc", {"0.ecc": 0}, "warning", "GPU 0: ECC is off", "-e 1"),
    ("remapped_rows", {"0.rows_pending": 1}, "failure", "GPU 0: a faulty row will be remapped", "--gpu-reset -i 0"),
    ("remapped_rows", {"1.rows_failed": 1}, "failure", "GPU 1: a row could not be remapped", "ROW_REMAPPER -i 1"),
    ("remapped_rows", {"rows": "!3", "1.pages_pending": 1}, "warning", "page will be retired", "--gpu-reset -i 1"),
    ("gpu_processes", {"0.memory_used": 40_000_000_000}, "warning", "in use by processes that are not", "/dev/nvidia0"),
    ("nvlink", {"0.link.2": 0}, "failure", "GPU 0: NVLink 2 down, 3 of 4 up", "nvidia-smi nvlink -s -i 0"),
    ("nvlink", {"1.link": 0}, "failure", "GPU 1: fewer links up (0) than the others (4)", "nvidia-smi nvlink -s"),
    ("nvlink", {"1.link_crc.3": 7}, "warning", "GPU 1: NVLink 3 has 7 CRC errors", "nvlink -e -i 1"),
    ("nvlink", {"0.fabric": 2}, "failure", "NVSwitch fabric: in progress", "nvidia-fabricmanager"),
    ("nvlink", {"0.fabric": 3, "0.fabric_status": 999}, "failure", "fabric: error 999", "fabricmanager"),
    ("pcie", {"1.pcie_width": 4}, "warning", "GPU 1: PCIe x4 of x16", "lspci -vv -s 0000:3c:00"),
    ("pcie", {"0.busy": 99, "0.pcie_generation": 1}, "warning", "busy on PCIe generation 1 of 5", "lspci"),
    ("pcie", {"0.pcie_replays": 12345}, "warning", "GPU 0: 12,345 PCIe transfers were repeated", "lspci"),
]  # fmt: skip
NOT_BAD = [
    ("clocks", {"sm_clock": 210}),  # idle
    ("throttling", {"throttle": 0x4, "busy": 99}),  # the power cap is how a device works under load
    ("ecc", {"ecc_corrected": 12}),
    ("pcie", {"pcie_generation": 1}),  # an idle link saves power
    ("nvlink", {"fabric": 3}),
]
SILENT = [
    ("clocks", {"sm_clock": "!3", "max_clock": "!3"}, "do not report it"),
    ("throttling", {"throttle": "!13", "throttle_old": "!13"}, "do not report it"),
    ("ecc", {"ecc": "!3"}, "do not report it"),
    ("remapped_rows", {"rows": "!3", "pages_pending": "!3"}, "do not report it"),
    ("gpu_processes", {"process": "!3", "memory": "!3"}, "do not report it"),
    ("clocks", {"devices": 0}, "lists no device"),
    ("nvlink", {"links": "!3"}, "do not report it"),
    ("nvlink", {"link": 0}, "no link is up on any GPU"),
    ("pcie", {"pcie_width": "!3"}, "do not report it"),
]


@pytest.mark.parametrize("name", CHECKS)
def test_two_healthy_devices_are_ok(gpus, name):
    result = CHECKS[name](gpus())
    assert (result.status, result.remedies) == ("ok", ()), result


@pytest.mark.parametrize(("name", "answers", "status", "text", "command"), BAD)
def test_what_is_bad_is_said_with_the_command(gpus, name, answers, status, text, command):
    result = CHECKS[name](gpus(answers))
    assert result.status == status, result
    assert text in result.summary
    assert any(command in remedy.command for remedy in result.remedies), result.remedies


@pytest.mark.parametrize(("name", "answers"), NOT_BAD)
def test_what_is_normal_is_not_blamed(gpus, name, answers):
    assert CHECKS[name](gpus(answers)).status == "ok"


@pytest.mark.parametrize(("name", "answers", "reason"), SILENT)
def test_what_a_device_does_not_tell_is_not_applicable(gpus, name, answers, reason):
    result = CHECKS[name](gpus(answers))
    assert result.status == "not_applicable"
    assert reason in result.summary


def test_a_process_of_somebody_else(gpus):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        result = gpu_state.gpu_processes(gpus({"1.process": other.pid}))
    finally:
        other.kill()
        other.wait()
    assert result.status == "warning"
    assert result.summary.startswith(f"GPU 1 is used by PID {other.pid} (python")
    assert result.summary.endswith("1,024 MiB")
    assert gpu_state.gpu_processes(gpus({"1.process": os.getpid()})).status == "ok"
