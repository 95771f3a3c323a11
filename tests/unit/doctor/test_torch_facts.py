"""What torch tells about itself, on a real torch with and without parts that fail."""

from types import SimpleNamespace

import torch

from dtk.doctor import torch_facts


def test_the_facts_of_this_torch():
    facts = torch_facts.facts()
    assert facts["version"] == torch.__version__ and facts["file"] == torch.__file__
    assert facts["distributed"] and facts["gloo"] and facts["numpy_error"] is None
    assert facts["cuda_available"] is bool(facts["devices"])


def cuda(**more):
    """A torch with CUDA, as far as the facts ask it."""
    device = SimpleNamespace(name="H100", major=9, minor=0)
    base = {
        "nccl": SimpleNamespace(version=lambda: (2, 28, 9)),
        "get_arch_list": lambda: ["sm_90"],
        "init": lambda: None,
        "device_count": lambda: 2,
        "get_device_properties": lambda i: device,
    }
    return SimpleNamespace(version=SimpleNamespace(cuda="13.0"), cuda=SimpleNamespace(**{**base, **more}))


def fails(text):
    def call(*_):
        raise RuntimeError(text)

    return call


def test_devices_with_their_capabilities():
    facts = torch_facts._cuda(cuda())
    assert facts["cuda_available"] and facts["nccl_version"] == "2.28.9" and facts["architectures"] == ["sm_90"]
    assert facts["devices"] == [{"name": "H100", "capability": [9, 0]}] * 2


def test_a_part_that_fails_does_not_cost_the_others():
    no_nccl = torch_facts._cuda(cuda(nccl=SimpleNamespace(version=fails("no NCCL\nsecond line"))))
    assert no_nccl["nccl_error"] == "no NCCL" and no_nccl["cuda_available"]
    no_cuda = torch_facts._cuda(cuda(init=fails("Error 802\ndetails")))
    assert no_cuda["cuda_error"] == "Error 802" and not no_cuda["cuda_available"] and no_cuda["devices"] == []
    assert no_cuda["nccl_version"] == "2.28.9" and no_cuda["architectures"] == ["sm_90"]
    none = torch_facts._cuda(cuda(device_count=lambda: 0))
    assert not none["cuda_available"] and none["cuda_error"] is None, "CUDA starts, and there is no device"
    silent = torch_facts._cuda(cuda(init=fails("")))
    assert silent["cuda_error"] == "RuntimeError"


def test_without_cuda_nothing_is_asked():
    facts = torch_facts._cuda(SimpleNamespace(version=SimpleNamespace(cuda=None)))
    assert facts == {"cuda_available": False, "cuda_error": None, "devices": [], "architectures": []}
