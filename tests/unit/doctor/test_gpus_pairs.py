"""Pairs of devices: peer access and copies."""

import pytest

from dtk.doctor import gpus as module
from dtk.doctor.model import ChildOutput

CHECKS = {"p2p": module.p2p}
BAD = [
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


def test_wrong_and_slow_copies():
    speeds = [{"from": "cuda:0", "to": f"cuda:{i}", "gb_per_s": 40.0} for i in range(1, 8)]
    speeds[2]["gb_per_s"] = 3.0
    slow = module.judge_copies(ChildOutput(list(speeds)))
    assert (slow.status, slow.summary) == ("warning", "cuda:0 to cuda:3: 3.0 GB/s, the median pair reaches 40.0 GB/s")
    speeds[1]["wrong"] = "12 of 8388608 words"
    wrong = module.judge_copies(ChildOutput(list(speeds)))
    assert wrong.status == "failure"
    assert wrong.remedies[0].command == "export NCCL_P2P_DISABLE=1"
