"""Versions of Python, torch, NumPy, Hydra and the extras from metadata, against the ranges that dtk supports, and
compatibility of torch's CUDA build, the NVIDIA driver, the devices and NCCL. Does not initialize CUDA.
"""

import importlib.metadata
import os
import platform
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from diagnostics.analysis.environment.catalogue import leading_version, version_text
from diagnostics.analysis.environment.known_bugs import Installed
from dtk.doctor import gpus
from dtk.doctor.model import Finding, Remedy, Result, Scope, finding, judged, not_applicable
from dtk.extras import install, installed

PYTHON = (3, 11)  # Same as `requires-python` in pyproject.toml.
ANTLR = "4.9"  # Runtime of the parser in OmegaConf 2.1 to 2.3 and Hydra 1.1 to 1.3, which reads no other version.
ANY_ANTLR = (2, 4)  # First OmegaConf that is not bound to that runtime.
OTHERS = ("dev", "docs", "bench")
"""Extras for work on dtk itself, which may be installed in part."""
JUDGED = ("torch", "hydra-core")
"""Packages that have a check of their own."""
LOOKALIKES = ("nvidia-ml-py3", "pynvml")
"""Packages that also provide a module `pynvml`; which of them is imported is undefined."""
DRIVER_FOR = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""CUDA major -> oldest Linux driver that runs it (CUDA release notes, table of minor version compatibility)."""
WHEELS = {12: "cu126", 13: "cu130"}
"""CUDA major -> PyTorch wheels that run on every driver of that major, by minor version compatibility."""


@cache
def requirements() -> dict[str, list[Requirement]]:
    """Return what each extra of dtk-train needs on this interpreter; under an empty name what dtk always needs.

    It is read from the metadata, or from pyproject.toml in a source tree that is not installed.
    """
    try:
        metadata = importlib.metadata.metadata("dtk-train")
        lines, extras = metadata.get_all("Requires-Dist", []), metadata.get_all("Provides-Extra", [])
    except importlib.metadata.PackageNotFoundError:
        source = Path(__file__).parents[2] / "pyproject.toml"
        project = tomllib.loads(source.read_text(encoding="utf-8"))["project"] if source.exists() else {}
        lines, extras = [*project.get("dependencies", [])], project.get("optional-dependencies", {})
        for extra, of_extra in extras.items():
            conditions = ((line, "and" if ";" in line else ";") for line in of_extra)
            lines += [f"{line} {joined} extra == '{extra}'" for line, joined in conditions]
    every = [Requirement(line) for line in lines]
    always = [each for each in every if _applies(each, "")]
    rest = [each for each in every if each not in always]
    return {"": always, **{extra: [each for each in rest if _applies(each, extra)] for extra in extras}}


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def least(requirement: Requirement) -> str:
    """Return the lower bound of a requirement; empty if it has none."""
    return next((bound.version for bound in requirement.specifier if bound.operator == ">="), "")


def _required(package: str) -> Requirement:
    return next((each for each in requirements().get("train", []) if each.name == package), Requirement(package))


def python(scope: Scope) -> Result:
    """Check the Python interpreter."""
    return judge_python(tuple(sys.version_info[:3]), bool(sysconfig.get_config_var("Py_DEBUG")))


def judge_python(version: tuple[int, ...], debug: bool) -> Result:
    """Judge a version of the Python interpreter."""
    findings, name = [], f"Python {version_text(version)}"
    if version[:2] < PYTHON:
        findings.append(finding("python_old", name=name, least=version_text(PYTHON)))
    if debug:
        findings.append(finding("python_debug", name=name))
    text = f"{name} ({platform.python_implementation()}, {platform.machine()})"
    own = version_text(version)
    return judged(findings, text, details=[sys.executable], measures={"version": own}, common={"Python": own})


def torch(scope: Scope) -> Result:
    """Check that torch is installed, importable, recent enough, has torch.distributed, and is compatible with NumPy."""
    answer = scope.torch()
    if not answer.installed:
        return judged([finding("not_installed", bad=True, package="torch", install=install("train"))])
    if not answer.facts:
        return judged([finding("torch_unusable", reason=answer.reason)])
    facts = answer.facts
    version = str(facts["version"])
    findings = _too_old(_required("torch"), version, bad=True)
    if missing := "" if facts["gloo"] else "gloo" if facts["distributed"] else "torch.distributed":
        findings.append(finding("without_gloo", version=version, missing=missing))
    if facts["numpy_error"]:
        numpy = installed("numpy") or "(absent)"
        findings.append(finding("numpy_misfit", version=version, numpy=numpy, why=facts["numpy_error"]))
    build = f"CUDA {facts['cuda_build']}" if facts["cuda_build"] else "ROCm" if facts["hip_build"] else "CPU only"
    text = f"torch {version}, {build}, NumPy {installed('numpy')}"
    measures = {"version": version, "cuda_build": facts["cuda_build"]}
    releases = {"torch": version, "nccl": str(facts.get("nccl_version", "")), "kernel": platform.release()}
    numbers = {name: leading_version(release) for name, release in releases.items()}
    bugs = Installed(numbers, platform.machine(), [gpu.name for gpu in gpus.find(scope)[0]]).possible(os.environ)
    details = [str(facts["file"]), *(f"known bug: {bug.what}; use {bug.fix} ({bug.source})" for bug in bugs)]
    return judged(findings, text, details=details, measures=measures, common={"torch": version})


def _too_old(requirement: Requirement, version: str, extra: str = "", *, bad: bool = False) -> list[Finding]:
    who = f", which the extra {extra} needs" if extra not in ("", "train") else ""
    # Release numbers are compared: 2.11.0a0, as containers name their torch, is not older than 2.11.
    is_old = leading_version(version) < leading_version(least(requirement))
    old = finding("too_old", bad=bad, name=requirement.name, version=version, least=least(requirement), who=who)
    return [old] if is_old else []


def config(scope: Scope) -> Result:
    """Check Hydra and OmegaConf, which compose the configuration of every run."""
    hydra, omegaconf, antlr = (installed(name) for name in ("hydra-core", "omegaconf", "antlr4-python3-runtime"))
    if hydra is None or omegaconf is None:
        absent = "hydra-core" if hydra is None else "omegaconf"
        return judged([finding("not_installed", bad=True, package=absent, install=install("train"))])
    findings = []
    required = _required("hydra-core")
    if not required.specifier.contains(hydra, prereleases=True):
        supported = f"hydra-core{','.join(sorted(map(str, required.specifier), reverse=True))}"  # `>=` first.
        findings.append(finding("other_hydra", hydra=hydra, wanted=supported))
    if antlr and leading_version(omegaconf) < ANY_ANTLR and leading_version(antlr)[:2] != leading_version(ANTLR):
        findings.append(finding("antlr", antlr=antlr, omegaconf=omegaconf, wanted=ANTLR))
    text = f"hydra-core {hydra}, omegaconf {omegaconf}"
    return judged(findings, text, common={"hydra-core": hydra, "omegaconf": omegaconf})


def extras(scope: Scope) -> Result:
    """Check whether the package dtk and its optional parts are complete, partly installed or absent."""
    own = installed("dtk-train")
    findings, whole, absent = [], [], []
    for extra, packages in requirements().items():
        if extra in OTHERS:
            continue
        missing = sorted(each.name for each in packages if installed(each.name) is None)
        if extra and len(missing) == len(packages):
            absent.append(extra)
        elif extra and missing:
            findings.append(finding("half_installed", extra=extra, missing=", ".join(missing), install=install(extra)))
        elif extra:
            whole.append(extra)
        for each in packages:
            if each.name not in JUDGED and (version := installed(each.name)):
                findings += _too_old(each, version, extra, bad=not extra)
    for package in ("numpy", "psutil", "nvidia-ml-py"):
        if not installed(package):
            findings.append(finding("not_installed", package=package, install=install("train")))
    for name in LOOKALIKES:
        if (version := installed(name)) and _too_old(_required("nvidia-ml-py"), version):
            findings.append(finding("lookalike", name=name, version=version))
    text = f"dtk {own or 'from a source tree'}; extras: {', '.join(whole) or 'none'}"
    details = [f"not installed: {', '.join(absent)}"] if absent else []
    return judged(findings, text, details=details, common={"dtk": own or "source tree"})


def cuda_driver(scope: Scope) -> Result:
    """Check torch's CUDA build against the driver and the devices."""
    nvml, reason = scope.nvml()
    facts = scope.torch().facts
    if not facts:
        return not_applicable(f"torch cannot say what it was built for: {scope.torch().reason}")
    if nvml is None:
        return not_applicable(f"{gpus.NO_GPU} ({reason})")
    driver = nvml.nvmlSystemGetDriverVersion()
    highest = nvml.nvmlSystemGetCudaDriverVersion_v2()
    runs = (highest // 1000, highest % 1000 // 10)
    measures = {"driver": driver, "driver_cuda": version_text(runs), "cuda_build": facts["cuda_build"]}
    findings = _fit(facts, str(driver), runs)
    text = f"torch for CUDA {facts['cuda_build']}, driver {driver} (CUDA {version_text(runs)})"
    return judged(findings, text, measures=measures, common={"NVIDIA driver": str(driver)})


def _fit(facts: dict[str, Any], driver: str, runs: tuple[int, int]) -> Iterator[Finding]:
    """Yield findings on incompatibilities between torch's build, the driver and the devices."""
    if facts["cuda_build"] is None:
        text = f"torch {facts['version']} is built without CUDA, but an NVIDIA driver ({driver}) is present"
        yield Finding("failure", text, _build_for(runs))
        return
    build = leading_version(str(facts["cuda_build"]))
    if build[0] > runs[0]:
        text = f"torch is built for CUDA {version_text(build)}, driver {driver} runs CUDA up to {version_text(runs)}"
        yield Finding("failure", text, _build_for(runs))
        if oldest := version_text(DRIVER_FOR.get(build[0], ())):
            yield finding("driver_too_old", driver=driver, oldest=oldest)
        return
    if facts["cuda_error"] or not facts["cuda_available"]:
        why = facts["cuda_error"] or "torch sees no device"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        yield finding("cuda_does_not_start" if visible is None else "cuda_hidden", why=why, visible=visible)
    # Devices for which this build holds no code: neither their major architecture nor PTX of an older one.
    built = [str(name) for name in facts["architectures"]]
    for i, device in enumerate(facts["devices"]):
        major, minor = device["capability"]
        if built and not any(_runs(name, major, minor) for name in built):
            text = f"GPU {i} {device['name']} is sm_{major}{minor}; this torch holds {', '.join(built)}"
            yield Finding("failure", text, _build_for(runs))


def _runs(name: str, major: int, minor: int) -> bool:
    """Whether code for `sm_80` or `compute_90a` runs on a device: same major, or PTX of an older one."""
    if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)) is None:
        return False
    kind, built, special = match[1], (int(match[2]), int(match[3])), match[4]
    if special == "a":  # Architecture-specific code runs on that architecture only.
        return built == (major, minor)
    return built <= (major, minor) and ((kind == "compute" and not special) or built[0] == major)


def _build_for(runs: tuple[int, int]) -> Remedy:
    """Return the remedy: how to install a torch build that the driver supports."""
    wheels = WHEELS.get(runs[0])
    if wheels is None:
        newest = f"install driver {version_text(DRIVER_FOR[max(WHEELS)])} or later, then reboot"
        return Remedy(f"no torch that dtk can use runs on CUDA {runs[0]}: {newest}")
    index = f"--index-url https://download.pytorch.org/whl/{wheels}"
    what = f"install a torch built for CUDA {runs[0]}, which this driver runs"
    return Remedy(what, f"{sys.executable} -m pip install --force-reinstall torch {index}")


def nccl(scope: Scope) -> Result:
    """Check the NCCL bundled with torch, and whether another library takes precedence."""
    facts = scope.torch().facts
    if not facts:
        return not_applicable(f"torch cannot be queried: {scope.torch().reason}")
    if not facts["nccl"] and not facts["cuda_build"]:
        return not_applicable("this torch is built without CUDA; gloo is the backend")
    if not facts["nccl"] or facts.get("nccl_error"):
        why = facts.get("nccl_error") or "torch was built without it"
        return judged([finding("no_nccl", why=why)])
    loaded = str(facts["nccl_version"])
    findings = []
    for major in DRIVER_FOR:
        package = f"nvidia-nccl-cu{major}"
        version = installed(package)
        if version not in (None, loaded) and leading_version(str(facts["cuda_build"]))[:1] == (major,):
            findings.append(finding("other_nccl", loaded=loaded, package=package, version=version))
    return judged(findings, f"NCCL {loaded}", measures={"version": loaded}, common={"NCCL": loaded})
