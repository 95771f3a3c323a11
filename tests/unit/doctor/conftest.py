from pathlib import Path

import pytest

from dtk.doctor.model import Scope
from tests import nvml_stub


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory):
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(stub_library, tmp_path, monkeypatch):
    """`gpus({"0.throttle": 64})` -> a scope whose NVML is the real pynvml on the C stub with these answers."""
    pynvml = pytest.importorskip("pynvml")
    nvml_stub.load(stub_library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(answers=None):
        path = nvml_stub.script(tmp_path / "answers", **(answers or {}))
        monkeypatch.setenv("NVML_STUB", str(path))
        scope = Scope(tmp_path)
        nvml, reason = scope.nvml()
        assert nvml is pynvml, reason
        return scope

    return make


@pytest.fixture
def scope(tmp_path: Path):
    return Scope(tmp_path)
