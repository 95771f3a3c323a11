"""The checks of GPUs, through the real pynvml on a C stub of the driver's library: each with its bad case."""

import json
import os
import subprocess
import sys
import time

import pytest

from dtk.doctor import copying, cuda_fit, gpu_state, links, pairs, xid
from dtk.doctor import gpus as present
from dtk.doctor.children import Said
from dtk.doctor.scope import Scope, TorchFacts

CHECKS = {check.name: check.run for check in (*present.CHECKS, *gpu_state.CHECKS, *links.CHECKS, *pairs.CHECKS[:1])}


@pytest.mark.parametrize("name", CHECKS)
def test_two_healthy_devices_are_ok(gpus, name):
    result = CHECKS[name](gpus())
    assert (result.status, result.remedies) == ("ok", ()), result


BAD = [
    ("devices", {"1.name": "Other GPU"}, "warning", "different kinds: Other GPU, Stub GPU", "VISIBLE_DEVICES=GPU-"),
    ("devices", {"1.handle": "!15"}, "failure", "GPU 1 does not answer: GPU is lost", "reboot"),
    ("devices", {"devices": "!999"}, "failure", "NVML does not count the devices", "reboot"),
    ("devices", {"0.compute_mode": 2}, "failure", "GPU 0 is in compute mode Prohibited", "nvidia-smi -i 0 -c DEFAULT"),
    ("devices", {"1.mig": 1}, "warning", "GPU 1 is split by MIG", "nvidia-smi -i 1 -mig 0"),
    ("clocks", {"0.busy": 90, "0.sm_clock": 600}, "warning", "busy at 600 MHz of 1980 MHz", "nvidia-smi -i 0 -rgc"),
    ("clocks", {"1.max_clock": 1410}, "warning", "different highest clocks: 1410, 1980 MHz", "nvidia-smi -rgc"),
    ("clocks", {"1.power_limit": 300000}, "warning", "GPU 1: power limit 300 W of 700 W", "nvidia-smi -i 1 -pl 700"),
    ("clocks", {"1.throttle": 0x2}, "warning", "GPU 1: application clocks are set", "nvidia-smi -i 1 -rac"),
    ("throttling", {"1.throttle": 0x48, "1.celsius": 91}, "failure", "hardware_thermal at 91 C", "-i 1"),
    ("throttling", {"0.throttle": 0x80}, "failure", "GPU 0 is throttled: hardware_power_brake", "-i 0"),
    ("throttling", {"0.throttle": 0x20}, "warning", "GPU 0 is throttled: software_thermal", "PERFORMANCE,TEMPERATURE"),
    ("throttling", {"throttle": "!13", "0.throttle_old": 0x40}, "failure", "hardware_thermal", "-i 0"),
    ("throttling", {"0.throttle": "!15"}, "failure", "GPU 0 stopped answering: GPU is lost", "reboot"),
    ("ecc", {"1.ecc_uncorrected": 3}, "failure", "GPU 1: 3 uncorrected ECC errors since its last", "--gpu-reset -i 1"),
    ("ecc", {"1.ecc_uncorrected_ever": 2}, "warning", "GPU 1: 2 uncorrected ECC errors in its life", "-d ECC -i 1"),
    ("ecc", {"0.ecc_corrected": 5000}, "warning", "GPU 0: 5,000 corrected ECC errors", "-d ECC -i 0"),
    ("ecc", {"0.ecc": 0}, "warning", "GPU 0: ECC is off", "-e 1"),
    ("remapped_rows", {"0.rows_pending": 1}, "failure", "GPU 0: a faulty row waits for a reset", "--gpu-reset -i 0"),
    ("remapped_rows", {"1.rows_failed": 1}, "failure", "GPU 1: a row could not be remapped", "ROW_REMAPPER -i 1"),
    ("remapped_rows", {"rows": "!3", "1.pages_pending": 1}, "warning", "GPU 1: a page waits", "--gpu-reset -i 1"),
    ("gpu_processes", {"0.memory_used": 40_000_000_000}, "warning", "held by no process that is", "/dev/nvidia0"),
    ("nvlink", {"0.link.2": 0}, "failure", "GPU 0: NVLink 2 down, 3 of 4 up", "nvidia-smi nvlink -s -i 0"),
    ("nvlink", {"1.link": 0}, "failure", "GPU 1: fewer links up (0) than the others (4)", "nvidia-smi nvlink -s"),
    ("nvlink", {"1.link_crc.3": 7}, "warning", "GPU 1: NVLink 3 has 7 CRC errors", "nvlink -e -i 1"),
    ("nvlink", {"0.fabric": 2}, "failure", "NVSwitch fabric: in progress", "nvidia-fabricmanager"),
    ("nvlink", {"0.fabric": 3, "0.fabric_status": 999}, "failure", "fabric: error 999", "fabricmanager"),
    ("pcie", {"1.pcie_width": 4}, "warning", "GPU 1: PCIe x4 of x16", "lspci -vv -s 0000:3c:00"),
    ("pcie", {"0.busy": 99, "0.pcie_generation": 1}, "warning", "busy on PCIe generation 1 of 5", "lspci"),
    ("pcie", {"0.pcie_replays": 12345}, "warning", "GPU 0: 12,345 PCIe transfers were repeated", "lspci"),
    ("p2p", {"0.p2p.1": 1}, "failure", "no peer access for 1 of 1 pairs (0-1): the chipset", "topo -p2p"),
    ("p2p", {"0.p2p_write": 4, "p2p_nvlink": 5}, "warning", "disabled in the driver", "NCCL_P2P_DISABLE=1"),
    ("p2p", {"devices": 3, "0.p2p_nvlink.2": 5}, "warning", "some pairs have no NVLink: 0-2", "nvidia-smi topo -m"),
    ("p2p", {"0.p2p.1": "!15"}, "failure", "the driver does not answer: GPU is lost", "topo"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answers", "status", "text", "command"), BAD)
def test_what_is_bad_is_said_with_the_command(gpus, name, answers, status, text, command):
    result = CHECKS[name](gpus(answers))
    assert result.status == status, result
    assert text in result.summary
    assert any(command in remedy.command for remedy in result.remedies), result.remedies


NOT_BAD = [
    ("clocks", {"sm_clock": 210}),  # idle
    ("throttling", {"throttle": 0x4, "busy": 99}),  # the power cap is how a device works under load
    ("pcie", {"pcie_generation": 1}),  # an idle link saves power
    ("nvlink", {"fabric": 3}),
    ("p2p", {"p2p_nvlink": 5}),  # all by PCIe
    ("ecc", {"ecc_corrected": 12}),
]


@pytest.mark.parametrize(("name", "answers"), NOT_BAD)
def test_what_is_normal_is_not_blamed(gpus, name, answers):
    assert CHECKS[name](gpus(answers)).status == "ok"


SILENT = [
    ("clocks", {"sm_clock": "!3", "max_clock": "!3"}, "do not tell"),
    ("throttling", {"throttle": "!13", "throttle_old": "!13"}, "do not tell"),
    ("ecc", {"ecc": "!3"}, "do not tell"),
    ("remapped_rows", {"rows": "!3", "pages_pending": "!3"}, "do not tell"),
    ("gpu_processes", {"process": "!3", "memory": "!3"}, "do not tell"),
    ("nvlink", {"links": "!3"}, "do not tell"),
    ("nvlink", {"link": 0}, "no link is up on any GPU"),
    ("pcie", {"pcie_width": "!3"}, "do not tell"),
    ("p2p", {"devices": 1}, "one GPU has no peer"),
    ("p2p", {"p2p": "!13", "p2p_write": "!13"}, "does not tell"),
    ("clocks", {"devices": 0}, "lists no device"),
    ("devices", {"devices": 0}, "lists no device"),
]


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
    assert result.summary.startswith(f"GPU 1 is used by pid {other.pid} (python")
    assert result.summary.endswith("1,024 MiB")
    assert gpu_state.gpu_processes(gpus({"1.process": os.getpid()})).status == "ok"


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
    result = present.present(scope)
    assert result.status == "failure"
    assert text in result.summary
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-aaaa-0000")
    assert present.present(scope).status == "ok"


def facts(**more):
    base = {"version": "2.13.0", "cuda_build": "13.0", "cuda_error": None, "cuda_available": True, "devices": []}
    return {**base, "architectures": ["sm_80", "sm_90", "compute_120"], "nccl": True, "nccl_version": "2.28.9", **more}


FIT = [
    ({}, {}, "ok", "CUDA 13.0, driver 580.65.06 (CUDA 13.0)", ""),
    ({"cuda_driver": 12040}, {}, "failure", "built for CUDA 13.0, driver 580.65.06 runs CUDA up to 12.4", "whl/cu126"),
    ({"cuda_driver": 11040}, {}, "failure", "runs CUDA up to 11.4", ""),
    ({"cuda_driver": 13000}, {"cuda_build": "12.6"}, "ok", "torch for CUDA 12.6", ""),
    ({}, {"cuda_build": None}, "failure", "built without CUDA, and an NVIDIA driver", "whl/cu130"),
    ({}, {"cuda_error": "Error 802: not yet", "cuda_available": False}, "failure", "Error 802", "nvidia-smi"),
    ({}, {"devices": [{"name": "V100", "capability": [7, 0]}]}, "failure", "V100 is sm_70; this torch", "whl"),
    ({}, {"devices": [{"name": "A10", "capability": [8, 6]}]}, "ok", "", ""),
    ({}, {"devices": [{"name": "next", "capability": [12, 1]}]}, "ok", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "torch", "status", "text", "command"), FIT)
def test_torch_and_the_driver(gpus, answers, torch, status, text, command):
    scope = gpus(answers)
    scope._torch = TorchFacts(facts(**torch))
    result = cuda_fit.cuda_driver(scope)
    assert result.status == status, result
    assert text in result.summary
    assert not command or command in result.remedies[0].command


def test_a_hidden_device_is_named_when_cuda_sees_none(gpus, monkeypatch):
    scope = gpus()
    scope._torch = TorchFacts(facts(cuda_available=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    assert cuda_fit.cuda_driver(scope).remedies[0].command == "unset CUDA_VISIBLE_DEVICES"


def test_a_driver_that_was_updated_under_a_running_kernel(gpus, tmp_path, monkeypatch):
    from tests import nvml_stub

    gpus()
    nvml_stub.script(tmp_path / "answers", init="!18")
    result = present.present(Scope(tmp_path))
    assert result.status == "failure"
    assert "mismatch" in result.summary
    assert result.remedies[0].command == "sudo reboot"


def test_no_driver_is_not_applicable(gpus, tmp_path, monkeypatch):
    gpus()
    monkeypatch.delenv("NVML_STUB")
    if present.nvidia_devices():
        pytest.skip("an NVIDIA device is here")
    for name, check in CHECKS.items():
        result = check(Scope(tmp_path))
        assert result.status == "not_applicable", name
        assert "Driver Not Loaded" in result.summary, name


# /dev/kmsg


def record(text, age_s=60.0):
    since_boot_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age_s) * 1e6)
    return f"4,1234,{since_boot_us},-;{text}\n SUBSYSTEM=pci\n"


@pytest.mark.parametrize(
    ("text", "age_s", "status", "told"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", 60, "failure", "fell off the bus"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", 180, "warning", "3 minutes ago"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008", 60, "warning", "page fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 999, something new", 60, "failure", "see the catalogue"),
        ("usb 1-1: new device", 60, "ok", "no Xid"),
    ],
)
def test_xid_of_the_kernel_log(tmp_path, monkeypatch, text, age_s, status, told):
    monkeypatch.setattr(xid, "RECENT_S", 120.0)  # This machine may not run since yesterday.
    log = tmp_path / "kmsg"
    log.write_text(record("systemd: started") + record(text, age_s))
    result = xid.judge_log(log, driver_here=True)
    assert result.status == status, result
    assert told in result.summary
    if status != "ok":
        assert result.summary.startswith("0000:3b:00: Xid ")
        assert result.measures["xid"][0]["age_s"] == pytest.approx(age_s, abs=5)


def test_a_log_that_cannot_be_read_is_told(tmp_path):
    assert xid.judge_log(tmp_path / "none", driver_here=False).status == "not_applicable"
    closed = xid.judge_log(tmp_path / "none", driver_here=True)
    assert closed.status == "not_applicable"
    assert closed.remedies[0].command == "sudo dmesg | grep -i xid"


def test_the_log_of_this_kernel_is_read_without_waiting():
    try:
        text = xid.read_log(xid.KERNEL_LOG)
    except OSError as error:
        pytest.skip(f"not allowed here: {error}")
    assert all(line.split(";")[0].split(",")[1].isdigit() for line in text.splitlines() if not line.startswith(" "))


# Copies


def test_copies_between_devices_are_really_made(capsys):
    copying.main(["cpu", "cpu:0"])
    said = Said([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    result = pairs.judge_copies(said, 60)
    assert result.status in ("ok", "warning"), result  # On a busy machine one may be slower, and that is said.
    assert [copy["gb_per_s"] > 0 for copy in result.measures["copies"]] == [True, True]


@pytest.mark.extended
def test_a_copy_to_a_device_that_is_not_there_fails():
    result = pairs.judge_copies(pairs.copy_all(["cpu", "cuda:99"], 60), 60)
    assert result.status == "failure"
    assert "in the copy from cpu to cuda:99" in result.summary


def test_wrong_and_slow_copies():
    speeds = [{"from": "cuda:0", "to": f"cuda:{i}", "gb_per_s": 40.0} for i in range(1, 8)]
    speeds[2]["gb_per_s"] = 3.0
    slow = pairs.judge_copies(Said(list(speeds)), 60)
    assert (slow.status, slow.summary) == ("warning", "cuda:0 to cuda:3: 3.0 GB/s, half of the pairs reach 40.0")
    speeds[1]["wrong"] = "12 of 8388608 words"
    wrong = pairs.judge_copies(Said(list(speeds)), 60)
    assert wrong.status == "failure"
    assert wrong.remedies[0].command == "export NCCL_P2P_DISABLE=1"
