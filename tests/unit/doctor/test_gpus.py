"""The checks of GPUs, through the real pynvml on a C stub of the driver's library: each with its bad case."""

import pytest

from dtk.doctor import gpus as module
from dtk.doctor.model import ChildOutput, Scope
from tests.unit.doctor.machines import checks_of

CHECKS = {"devices": module.devices, "p2p": module.p2p}
ALL = {**CHECKS, **checks_of("gpu_state")}
BAD = [
    ("devices", {"1.name": "Other GPU"}, "warning", "different kinds: Other GPU, Stub GPU", "VISIBLE_DEVICES=GPU-"),
    ("devices", {"1.handle": "!15"}, "failure", "GPU 1 does not respond: GPU is lost", "reboot"),
    ("devices", {"devices": "!999"}, "failure", "NVML cannot count the devices", "reboot"),
    ("devices", {"0.compute_mode": 2}, "failure", "GPU 0 is in compute mode Prohibited", "nvidia-smi -i 0 -c DEFAULT"),
    ("devices", {"1.mig": 1}, "warning", "GPU 1 is split by MIG", "nvidia-smi -i 1 -mig 0"),
    ("p2p", {"0.p2p.1": 1}, "failure", "no peer access for 1 of 1 pairs (0-1): the chipset", "topo -p2p"),
    ("p2p", {"0.p2p_write": 4, "p2p_nvlink": 5}, "warning", "disabled in the driver", "NCCL_P2P_DISABLE=1"),
    ("p2p", {"devices": 3, "0.p2p_nvlink.2": 5}, "warning", "some pairs have no NVLink: 0-2", "nvidia-smi topo -m"),
    ("p2p", {"0.p2p.1": "!15"}, "failure", "the driver does not respond: GPU is lost", "topo"),
]  # fmt: skip
NOT_BAD = [
    ("p2p", {"p2p_nvlink": 5}),  # all by PCIe
]
SILENT = [
    ("p2p", {"devices": 1}, "one GPU has no peer"),
    ("p2p", {"p2p": "!13", "p2p_write": "!13"}, "does not report it"),
    ("devices", {"devices": 0}, "lists no device"),
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


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ("", "hides every GPU"),
        ("7", "hides every GPU"),
        ("0,5,1", "there is no device 5, so CUDA ignores the last 2 entries"),
        ("GPU-aaaa-0001,GPU-bbbb", "there is no device GPU-bbbb"),
    ],
)
def test_visible_devices_that_are_not_there(gpus, monkeypatch, chosen, text):
    scope = gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    result = module.devices(scope)
    assert result.status == "failure"
    assert text in result.summary
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-aaaa-0000")
    assert module.devices(scope).status == "ok"


def test_a_driver_that_was_updated_under_a_running_kernel(gpus, tmp_path, monkeypatch):
    from tests import nvml_stub

    gpus()
    nvml_stub.script(tmp_path / "answers", init="!18")
    result = module.devices(Scope(tmp_path))
    assert result.status == "failure"
    assert "mismatch" in result.summary
    assert result.remedies[0].command == "sudo reboot"


def test_no_driver_is_not_applicable(gpus, tmp_path, monkeypatch):
    gpus()
    monkeypatch.delenv("NVML_STUB")
    if module.nvidia_devices():
        pytest.skip("an NVIDIA device is here")
    for name, check in ALL.items():
        result = check(Scope(tmp_path))
        assert result.status == "not_applicable", name
        assert "Driver Not Loaded" in result.summary, name


def test_wrong_and_slow_copies():
    speeds = [{"from": "cuda:0", "to": f"cuda:{i}", "gb_per_s": 40.0} for i in range(1, 8)]
    speeds[2]["gb_per_s"] = 3.0
    slow = module.judge_copies(ChildOutput(list(speeds)))
    assert (slow.status, slow.summary) == ("warning", "cuda:0 to cuda:3: 3.0 GB/s, the median pair reaches 40.0 GB/s")
    speeds[1]["wrong"] = "12 of 8388608 words"
    wrong = module.judge_copies(ChildOutput(list(speeds)))
    assert wrong.status == "failure"
    assert wrong.remedies[0].command == "export NCCL_P2P_DISABLE=1"
