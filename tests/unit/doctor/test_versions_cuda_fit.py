"""torch's CUDA build against driver and devices."""

import pytest

from dtk.doctor import versions
from dtk.doctor.model import TorchFacts


def facts(**more):
    base = {"version": "2.13.0", "cuda_build": "13.0", "cuda_error": None, "cuda_available": True, "devices": []}
    return {**base, "architectures": ["sm_80", "sm_90", "compute_120"], "nccl": True, "nccl_version": "2.28.9", **more}


FIT = [
    ({}, {}, "ok", "CUDA 13.0, driver 580.65.06 (CUDA 13.0)", ""),
    ({"cuda_driver": 12040}, {}, "failure", "built for CUDA 13.0, driver 580.65.06 runs CUDA up to 12.4", "whl/cu126"),
    ({"cuda_driver": 11040}, {}, "failure", "runs CUDA up to 11.4", ""),
    ({"cuda_driver": 13000}, {"cuda_build": "12.6"}, "ok", "torch for CUDA 12.6", ""),
    ({}, {"cuda_build": None}, "failure", "built without CUDA, but an NVIDIA driver", "whl/cu130"),
    ({}, {"cuda_error": "Error 802: not yet", "cuda_available": False}, "failure", "Error 802", "nvidia-smi"),
    ({}, {"devices": [{"name": "V100", "capability": [7, 0]}]}, "failure", "V100 is sm_70; this torch", "whl"),
    ({}, {"devices": [{"name": "A10", "capability": [8, 6]}]}, "ok", "", ""),
    ({}, {"devices": [{"name": "next", "capability": [12, 1]}]}, "ok", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "torch", "status", "text", "command"), FIT)
def test_torch_and_the_driver(gpus, answers, torch, status, text, command):
    scope = gpus(answers)
    scope._torch = TorchFacts(facts(**torch))
    result = versions.cuda_driver(scope)
    assert result.status == status, result
    assert text in result.summary
    assert not command or command in result.remedies[0].command


def test_a_hidden_device_is_named_when_cuda_sees_none(gpus, monkeypatch):
    scope = gpus()
    scope._torch = TorchFacts(facts(cuda_available=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    assert versions.cuda_driver(scope).remedies[0].command == "unset CUDA_VISIBLE_DEVICES"
