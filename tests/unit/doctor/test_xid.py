"""Xid events of the kernel log."""

import time

import pytest

from dtk.doctor import xid
from dtk.doctor.model import Scope


def record(text, age_s=60.0):
    since_boot_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age_s) * 1e6)
    return f"4,1234,{since_boot_us},-;{text}\n SUBSYSTEM=pci\n"


@pytest.mark.parametrize(
    ("text", "age_s", "status", "value"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", 60, "failure", "fallen off the bus"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.", 180, "warning", "3m ago"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008", 60, "warning", "page fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 999, something new", 60, "failure", "see the Xid catalogue of NVIDIA"),
        ("usb 1-1: new device", 60, "ok", "no Xid"),
    ],
)
def test_xid_of_the_kernel_log(tmp_path, monkeypatch, text, age_s, status, value):
    monkeypatch.setattr(xid, "nvidia_devices", lambda: True)
    monkeypatch.setattr(xid, "RECENT_S", 120.0)  # This machine may not run since yesterday.
    log = tmp_path / "kmsg"
    log.write_text(record("systemd: started") + record(text, age_s))
    result = xid.xid(Scope(tmp_path), log)
    assert result.status == status, result
    assert value in result.summary
    if status != "ok":
        assert result.summary.startswith("0000:3b:00: Xid ")
        assert result.measures["xid"][0]["age_s"] == pytest.approx(age_s, abs=5)


def test_a_log_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(xid, "nvidia_devices", lambda: False)
    assert xid.xid(Scope(tmp_path), tmp_path / "none").status == "not_applicable"
    monkeypatch.setattr(xid, "nvidia_devices", lambda: True)
    closed = xid.xid(Scope(tmp_path), tmp_path / "none")
    assert closed.status == "not_applicable"
    assert closed.remedies[0].command == "sudo dmesg | grep -i xid"


def test_the_log_of_this_kernel_is_read_without_waiting():
    try:
        text = xid.read_log(xid.KERNEL_LOG)
    except OSError as error:
        pytest.skip(f"not allowed here: {error}")
    assert all(line.split(";")[0].split(",")[1].isdigit() for line in text.splitlines() if not line.startswith(" "))
