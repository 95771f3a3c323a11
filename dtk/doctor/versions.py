"""Versions of Python, torch, NumPy, Hydra and the extras from metadata, against the ranges that dtk supports."""

import importlib.metadata
import platform
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dtk.doctor.model import Check, Finding, Remedy, Result, Status, found, judged
from dtk.doctor.scope import Scope
from dtk.extras import install

TOPIC = "versions"
PYTHON = (3, 11)  # Same as `requires-python` in pyproject.toml.
ANTLR = "4.9"  # Runtime of the parser in OmegaConf 2.1 to 2.3 and Hydra 1.1 to 1.3, which reads no other version.
OTHERS = ("dev", "docs", "bench")
"""Extras for work on dtk itself, which may be installed in part."""
JUDGED = ("torch", "hydra-core")
"""Packages that have a check of their own."""
LOOKALIKES = ("nvidia-ml-py3", "pynvml")
"""Packages that also provide a module `pynvml`; which of them is imported is undefined."""


def number(text: str) -> tuple[int, ...]:
    """Return (2, 13, 0) for `2.13.0+cu130`, and () for a text that does not begin with a number."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def installed(package: str) -> str | None:
    """Return the version of an installed distribution; None if it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that dtk or one of its extras needs, as the metadata of dtk-train states it."""

    package: str
    bounds: str
    """`>=1.3.2,<1.5`; empty without bounds."""
    extra: str
    """Empty for a package that dtk always needs."""

    @property
    def least(self) -> str:
        """The lower bound; empty if there is none."""
        return next((bound[2:] for bound in self.bounds.split(",") if bound.startswith(">=")), "")

    def too_old(self, version: str) -> bool:
        """Return whether a version is below the lower bound."""
        return bool(self.least) and number(version) < number(self.least)

    def fits(self, version: str) -> bool:
        """Return whether a version lies within the bounds."""
        below = [number(bound[1:]) for bound in self.bounds.split(",") if re.match(r"<\d", bound)]
        return not self.too_old(version) and all(number(version) < bound for bound in below)


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return what dtk-train requires, by its metadata, or by pyproject.toml in a source tree that is not installed."""
    lines: list[str] = []
    try:
        lines = importlib.metadata.requires("dtk-train") or []
    except importlib.metadata.PackageNotFoundError:
        with suppress(OSError, KeyError, ValueError):
            text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
            project = tomllib.loads(text)["project"]
            extras = project["optional-dependencies"].items()
            lines = project["dependencies"] + [f"{line}; extra == '{extra}'" for extra, of in extras for line in of]
    found = []
    for line in lines:
        text, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*\(?([^)]*)", text.strip())
        if match and "python_version" not in marker:
            bounds = sorted(match[2].replace(" ", "").split(","), reverse=True)  # `>=` first.
            found.append(Requirement(match[1], ",".join(bounds), extra[1] if extra else ""))
    return tuple(found)


def requirements_of(extra: str) -> Iterator[Requirement]:
    """Yield the requirements of an extra; of dtk itself for an empty name."""
    return (each for each in requirements() if each.extra == extra)


def _required(package: str) -> Requirement:
    wanted = (each for each in requirements_of("train") if each.package == package)
    return next(wanted, Requirement(package, "", "train"))


def dotted(version: tuple[int, ...]) -> str:
    """Return `2.13` for (2, 13)."""
    return ".".join(map(str, version))


def python(scope: Scope) -> Result:
    """Check the Python interpreter."""
    return judge_python(tuple(sys.version_info[:3]), bool(sysconfig.get_config_var("Py_DEBUG")))


def judge_python(version: tuple[int, ...], debug: bool) -> Result:
    """Judge a version of the Python interpreter."""
    findings, name = [], f"Python {dotted(version)}"
    if version[:2] < PYTHON:
        findings.append(found("python_old", name=name, least=dotted(PYTHON)))
    if debug:
        findings.append(found("python_debug", name=name))
    text = f"{name} ({platform.python_implementation()}, {platform.machine()})"
    own = dotted(version)
    return judged(findings, text, details=[sys.executable], measures={"version": own}, common={"Python": own})


def torch(scope: Scope) -> Result:
    """Check that torch is installed, importable, recent enough, has torch.distributed, and is compatible with NumPy."""
    answer = scope.torch()
    if not answer.installed:
        return judged([found("not_installed", bad=True, package="torch", install=install("train"))])
    if not answer.facts:
        return judged([found("torch_unusable", reason=answer.reason, python=sys.executable)])
    facts = answer.facts
    version = str(facts["version"])
    findings = _too_old("failure", _required("torch"), version)
    if missing := "" if facts["gloo"] else "gloo" if facts["distributed"] else "torch.distributed":
        findings.append(Finding("failure", f"torch {version} was built without {missing}", upgrade("torch")))
    if facts["numpy_error"]:
        numpy = installed("numpy")
        text = f"torch {version} and NumPy {numpy or '(absent)'} are incompatible: {facts['numpy_error']}"
        findings.append(Finding("failure", text, upgrade("torch numpy")))
    build = f"CUDA {facts['cuda_build']}" if facts["cuda_build"] else "ROCm" if facts["hip_build"] else "CPU only"
    text = f"torch {version}, {build}, NumPy {installed('numpy')}"
    measures = {"version": version, "cuda_build": facts["cuda_build"]}
    return judged(findings, text, details=[str(facts["file"])], measures=measures, common={"torch": version})


def _too_old(status: Status, wanted: Requirement, version: str) -> list[Finding]:
    who = f", which the extra {wanted.extra} needs" if wanted.extra not in ("", "train") else ""
    text = f"{wanted.package} {version} is older than {wanted.least}{who}"
    old = Finding(status, text, upgrade(f"{wanted.package}>={wanted.least}"))
    return [old] if wanted.too_old(version) else []


def upgrade(packages: str) -> Remedy:
    """Return the remedy that installs compatible versions of some packages."""
    wanted = " ".join(f"'{package}'" if ">" in package else package for package in packages.split())
    return Remedy("install a compatible version", f"{sys.executable} -m pip install --upgrade {wanted}")


def config(scope: Scope) -> Result:
    """Check Hydra and OmegaConf, which compose the configuration of every run."""
    hydra, omegaconf, antlr = (installed(name) for name in ("hydra-core", "omegaconf", "antlr4-python3-runtime"))
    if hydra is None or omegaconf is None:
        absent = "hydra-core" if hydra is None else "omegaconf"
        return judged([found("not_installed", bad=True, package=absent, install=install("train"))])
    findings = []
    required = _required("hydra-core")
    if not required.fits(hydra):
        wanted = f"hydra-core{required.bounds}"
        text = f"hydra-core {hydra} is not a version that dtk supports ({wanted})"
        findings.append(Finding("failure", text, upgrade(wanted)))
    if antlr and number(omegaconf) < (2, 4) and number(antlr)[:2] != number(ANTLR):
        findings.append(found("antlr", antlr=antlr, omegaconf=omegaconf, wanted=ANTLR, python=sys.executable))
    text = f"hydra-core {hydra}, omegaconf {omegaconf}"
    return judged(findings, text, common={"hydra-core": hydra, "omegaconf": omegaconf})


def extras(scope: Scope) -> Result:
    """Check whether the package dtk and its optional parts are complete, partly installed or absent."""
    findings = []
    own = installed("dtk-train")
    whole, absent = [], []
    extras = {each.extra: [*requirements_of(each.extra)] for each in requirements() if each.extra not in ("", *OTHERS)}
    for extra, packages in extras.items():
        missing = sorted(each.package for each in packages if installed(each.package) is None)
        if len(missing) == len(packages):
            absent.append(extra)
        elif missing:
            findings.append(found("half_installed", extra=extra, missing=", ".join(missing), install=install(extra)))
        else:
            whole.append(extra)
    for each in (*requirements_of(""), *(each for packages in extras.values() for each in packages)):
        if each.package not in JUDGED and (version := installed(each.package)):
            findings += _too_old("warning" if each.extra else "failure", each, version)
    for package in ("numpy", "psutil", "nvidia-ml-py"):
        if not installed(package):
            findings.append(found("not_installed", package=package, install=install("train")))
    for name in LOOKALIKES:
        if (version := installed(name)) and _required("nvidia-ml-py").too_old(version):
            findings.append(found("lookalike", name=name, version=version, python=sys.executable))
    text = f"dtk {own or 'from a source tree'}; extras: {', '.join(whole) or 'none'}"
    details = [f"not installed: {', '.join(absent)}"] if absent else []
    return judged(findings, text, details=details, common={"dtk": own or "source tree"})


CHECKS = (
    Check("python", TOPIC, "the interpreter", python),
    Check("torch", TOPIC, "torch imports, is recent enough, has torch.distributed, fits NumPy", torch, slow=True),
    Check("config", TOPIC, "Hydra, OmegaConf and their parser", config),
    Check("extras", TOPIC, "dtk and its optional parts", extras),
)
