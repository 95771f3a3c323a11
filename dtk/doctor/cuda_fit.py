"""Compatibility of torch's CUDA build, the NVIDIA driver, the devices and NCCL. Does not initialize CUDA."""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from diagnostics.analysis.environment.catalogue import leading_version, version_text
from dtk.doctor.gpus import NO_GPU
from dtk.doctor.model import Finding, Remedy, Result, finding, judged, not_applicable
from dtk.doctor.scope import Scope
from dtk.extras import installed

DRIVER_FOR = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""CUDA major -> oldest Linux driver that runs it (CUDA release notes, table of minor version compatibility)."""
WHEELS = {12: "cu126", 13: "cu130"}
"""CUDA major -> PyTorch wheels that run on every driver of that major, by minor version compatibility."""


def cuda_driver(scope: Scope) -> Result:
    """Check torch's CUDA build against the driver and the devices."""
    nvml, reason = scope.nvml()
    facts = scope.torch().facts
    if not facts:
        return not_applicable(f"torch cannot say what it was built for: {scope.torch().reason}")
    if nvml is None:
        return not_applicable(f"{NO_GPU} ({reason})")
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
