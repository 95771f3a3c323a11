"""NVLink and PCIe, through the real pynvml on a C stub of the driver's library: each with its bad case."""

import pytest

from tests.unit.doctor.machines import checks_of

CHECKS = {name: run for name, run in checks_of("gpu_state").items() if name in ("nvlink", "pcie")}
BAD = [
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
    ("pcie", {"pcie_generation": 1}),  # an idle link saves power
    ("nvlink", {"fabric": 3}),
]
SILENT = [
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
