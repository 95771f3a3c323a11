"""Versions: judged on real installations that are made bad, and on packages of the test's own."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from dtk.doctor import versions
from dtk.doctor.model import Scope, TorchFacts
from dtk.launch.children import end_all

ROOT = Path(__file__).parents[3]
TORCH = """
__version__ = {version!r}
def zeros(n):
    raise RuntimeError("Numpy is not available") if {numpy_is_bad!r} else None
    class T:
        def numpy(self): return None
    return T()
class version: cuda = None; hip = None
class distributed: pass
"""
DISTRIBUTED = "def is_available(): return {available!r}\ndef is_gloo_available(): return True\n"
DISTRIBUTED += "def is_nccl_available(): return False\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that come before the installed ones, for this process and its children."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)  # find_spec asks them first.
    return folder


def put_torch(site, version="2.13.0", numpy_is_bad=False, available=True, source=None):
    (site / "torch").mkdir()
    text = TORCH.format(version=version, numpy_is_bad=numpy_is_bad).replace("class distributed: pass\n", "")
    text = text.replace('raise RuntimeError("Numpy is not available") if True else None', "raise_it()")
    text = "def raise_it(): raise RuntimeError('Numpy is not available')\n" + text
    text = text.replace('raise RuntimeError("Numpy is not available") if False else None', "pass")
    (site / "torch" / "__init__.py").write_text(text if source is None else source)
    (site / "torch" / "distributed.py").write_text(DISTRIBUTED.format(available=available))


def put_metadata(site, name, version):
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_torch_that_fits(site, tmp_path):
    put_torch(site)
    result = versions.torch(Scope(tmp_path))
    assert (result.status, result.common) == ("ok", {"torch": "2.13.0"}), result
    assert not any("known bug" in line for line in result.details)


def test_known_bugs_of_a_version_are_told(site, tmp_path):
    put_torch(site, version="2.9.0")
    details = versions.torch(Scope(tmp_path)).details
    assert any("use_reentrant=False" in line and "pytorch/pytorch#169349" in line for line in details), details


@pytest.mark.parametrize(("name", "text"), [("NVIDIA GeForce RTX 5090", True), ("NVIDIA H100 80GB HBM3", False)])
def test_a_bug_of_one_gpu_is_told_where_nvml_names_that_gpu(gpus, name, text):
    scope = gpus({"0.name": name})
    built = {"gloo": True, "distributed": True, "numpy_error": "", "cuda_build": "12.8", "hip_build": None}
    scope._torch = TorchFacts({"version": "2.13.0", "nccl_version": "2.25.1", "file": "torch/__init__.py", **built})
    assert any("RTX 5090" in line for line in versions.torch(scope).details) == text


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ({"version": "2.3.1"}, "torch 2.3.1 is older than 2.11"),
        ({"available": False}, "built without torch.distributed"),
        ({"numpy_is_bad": True}, "are incompatible: RuntimeError: Numpy is not available"),
        ({"source": "raise ImportError('libcudart.so.13: cannot open')"}, "ImportError: libcudart.so.13: cannot open"),
        ({"source": "import os; os.kill(os.getpid(), 11)"}, "killed by SIGSEGV"),
        ({"source": "import os; os._exit(0)"}, "it printed nothing"),
    ],
)
def test_a_torch_that_does_not(site, tmp_path, expected, text):
    put_torch(site, **expected)
    result = versions.torch(Scope(tmp_path))
    assert result.status == "failure", result
    assert text in result.summary
    assert result.remedies[0].command.startswith(sys.executable)


def test_a_torch_whose_import_does_not_end(site, tmp_path):
    put_torch(site, source="import time; time.sleep(600)")
    result = versions.torch(Scope(tmp_path, timeout_s=1))
    assert result.status == "failure"
    assert "no answer in 1 s" in result.summary
    end_all()


def test_no_torch(tmp_path):
    scope = Scope(tmp_path)
    scope._torch = TorchFacts({}, "torch is not installed", installed=False)
    result = versions.torch(scope)
    assert (result.status, result.summary) == ("failure", "torch is not installed")
    assert "pip install 'dtk-train[train]'" in result.remedies[0].command
    assert versions.nccl(scope).status == "not_applicable"


def test_the_interpreter():
    assert versions.judge_python((3, 12, 1), False).status == "ok"
    assert versions.judge_python((3, 10, 9), False).summary == "Python 3.10.9 is older than 3.11"
    assert versions.judge_python((3, 12, 1), True).status == "warning"


@pytest.mark.parametrize(
    ("package", "version", "text", "command"),
    [
        ("hydra-core", "1.1.0", "hydra-core 1.1.0 is not a version that dtk supports", "'hydra-core>=1.3.2,<1.5'"),
        ("hydra-core", "2.0", "hydra-core 2.0 is not a version", "hydra-core"),
        ("antlr4-python3-runtime", "4.13.2", "OmegaConf 2.3.0 reads its grammar with 4.9 only", "==4.9.*"),
    ],
)
def test_hydra_and_its_parser(site, scope, package, version, text, command):
    for name, fine in (("hydra-core", "1.3.2"), ("omegaconf", "2.3.0"), ("antlr4-python3-runtime", "4.9.3")):
        if name != package:
            put_metadata(site, name, fine)
    assert versions.config(scope).status in ("ok", "failure")
    put_metadata(site, package, version)
    result = versions.config(scope)
    assert result.status == "failure", result
    assert text in result.summary
    assert command in result.remedies[0].command


def test_no_hydra(monkeypatch, scope):
    monkeypatch.setattr(sys, "path", [])
    result = versions.config(scope)
    assert (result.status, result.summary) == ("failure", "hydra-core is not installed")


def test_extras_that_are_half_installed_or_old(monkeypatch, site, scope):
    monkeypatch.setattr(sys, "path", [str(site)])
    for name, version in (("transformers", "4.50"), ("psutil", "5.1"), ("pynvml", "8.0.4"), ("numpy", "2.0")):
        put_metadata(site, name, version)
    put_metadata(site, "nvidia-ml-py", "13.0")
    result = versions.extras(scope)
    assert result.status == "warning"
    text = "\n".join((result.summary, *result.details))
    assert "extra hf is only partly installed: datasets, tiktoken, tokenizers missing" in text
    assert "psutil 5.1 is older than 5.9" in text
    assert "pynvml 8.0.4 installs a different module named pynvml" in text
    assert f"{sys.executable} -m pip uninstall -y pynvml" in [remedy.command for remedy in result.remedies]


def test_nccl(site, scope):
    facts = {"nccl": True, "cuda_build": "13.0", "nccl_version": "2.28.9"}
    scope._torch = TorchFacts(facts)
    put_metadata(site, "nvidia-nccl-cu13", "2.28.9")
    assert (versions.nccl(scope).status, versions.nccl(scope).summary) == ("ok", "NCCL 2.28.9")
    facts["nccl_version"] = "2.18.1"
    result = versions.nccl(scope)
    assert result.status == "warning"
    assert "NCCL 2.18.1 is loaded, nvidia-nccl-cu13 is 2.28.9" in result.summary
    facts["nccl_error"] = "undefined symbol: ncclCommWindowRegister"
    assert versions.nccl(scope).status == "failure"


@pytest.mark.parametrize("metadata", [True, False])
def test_the_bounds_are_those_of_the_package(monkeypatch, metadata):
    """What is checked is what pyproject.toml asks for, whether dtk is installed or a source tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not metadata:
        monkeypatch.setattr(sys, "path", [])
    versions.requirements.cache_clear()
    requests = {"": {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}}
    for extra, lines in project["optional-dependencies"].items():
        fit = [line for line in lines if "python_version < '3.13'" not in line or sys.version_info < (3, 13)]
        requests[extra] = {re.match(r"[\w-]+", line)[0].lower() for line in fit}
    requirements = versions.requirements()
    versions.requirements.cache_clear()
    assert {extra: {each.name.lower() for each in packages} for extra, packages in requirements.items()} == requests
    hydra = next(each for each in requirements["train"] if each.name == "hydra-core")
    assert versions.least(hydra) == "1.3.2"
    assert [version in hydra.specifier for version in ("1.3.2", "1.5", "1.3.1")] == [True, False, False]
    assert project["requires-python"] == f">={versions.version_text(versions.PYTHON)}"


@pytest.mark.parametrize(
    ("package", "status", "text"),
    [
        ("msgspec", "failure", "msgspec 0.1 is older than 0.21"),
        ("rich", "failure", "rich 0.1 is older than 13.7"),
        ("safetensors", "warning", "safetensors 0.1 is older than 0.4.5"),
        ("wandb", "warning", "wandb 0.1 is older than 0.17, which the extra wandb needs"),
    ],
)
def test_a_package_below_its_lower_bound_is_named(site, scope, package, status, text):
    put_metadata(site, package, "0.1")
    result = versions.extras(scope)
    assert result.status == status and text in "\n".join((result.summary, *result.details))
    assert f"'{package}>={text.split()[5].rstrip(',')}'" in "\n".join(remedy.command for remedy in result.remedies)
