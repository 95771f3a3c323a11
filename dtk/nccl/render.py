"""Renders a preset into variables for the ranks; variables that the user has set stay and are reported. Called before
any communicator exists, in the parent or in ranks that torchrun or Slurm started.
"""

import ipaddress
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diagnostics.analysis.environment.values import ConfFile, parse_conf
from diagnostics.contract.files import read_record
from dtk.config.schema import NCCLConfig
from dtk.errors import DtkError, Errors

SYSTEM = Path("/etc/nccl.conf")
"""NCCL reads $NCCL_CONF_FILE, else .nccl.conf in the home folder that the system knows (not $HOME), then this file.

A name that is set already stays (src/misc/param.cc).
"""
MOST_BYTES = 1 << 20  # Maximum size of a file; real ones have a few lines.
_errors = Errors(__file__)
RUN = "run"
KEYS = ("interface", "hca", "address_range", "traffic_class", "topo_file", "ras_port")
"""Keys of the section that values refer to in braces."""
ENVIRONMENT = "environment"
_BRACES = re.compile(r"\{(" + "|".join((*KEYS, RUN)) + r")(\??)\}")
_LIST = re.compile(r"[\w.@:-]+(?:,[\w.@:-]+)*")
_FAMILIES = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH_NCCL|TORCH_GLOO|TORCH_FR|UCX|FI|SHARP|MSCCL|NVSHMEM|HSA|IBV)_[A-Z0-9_]+|TORCH_DISTRIBUTED_DEBUG"
    r"|TORCH_CPP_LOG_LEVEL|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_DEVICE_ORDER|OFI_NCCL_[A-Z0-9_]+"
)
"""Variables that a preset may set: those of NCCL and RCCL, gloo, torch's process groups, and their transports."""
_BACKENDS = {"nccl": "NCCL", "gloo": "gloo"}
_EXAMPLES = {"interface": "eth0", "hca": '"mlx5_0,mlx5_1"', "address_range": "10.1.0.0/16", "topo_file": "FILE"}


@dataclass(frozen=True, slots=True)
class Conf:
    """One configuration file that exists."""

    path: Path
    content: ConfFile


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's configuration file, whether it exists or not."""
    named = environment.get("NCCL_CONF_FILE")
    if named:
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".nccl.conf"
    except KeyError:  # This container has no such user.
        return None


def read_conf(path: Path | None) -> Conf | None:
    """Read a configuration file; return None if there is no such file, or it cannot be read."""
    with suppress(OSError, ValueError):
        if path is not None:
            return Conf(path, parse_conf(read_record(path, MOST_BYTES).decode("utf-8", "replace")))
    return None


class MissingKeyError(DtkError):
    """A variable of a preset needs a key that is not set."""

    def __init__(self, what: str, why: str = "", fix: str = "", key: str = "") -> None:
        super().__init__(what, why, fix)
        self.key = key


@dataclass(frozen=True, slots=True)
class OwnVariable:
    """A variable that the user has set."""

    name: str
    value: str
    """The user's value, which takes precedence."""
    preset: str
    """The value that the preset would have set."""
    source: str
    """Origin: `environment`, or the path of the file."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The variables of a preset in this environment."""

    preset: str
    variables: dict[str, str]
    """Variables to set, except those that the user has set."""
    kept: tuple[OwnVariable, ...]
    """Variables set by the user that take precedence and differ from the preset."""


def render(config: NCCLConfig, environment: Mapping[str, str], run: Path | None = None) -> Rendered:
    """Render the variables of a section for an environment.

    Values of the environment and nccl.conf take precedence; without a run `{run}` stays. DtkError if a key is missing.
    """
    file = read_conf(user_file(environment))
    in_file = {} if file is None else {n: v for n, v in file.content.variables.items() if n.startswith("NCCL_")}
    variables, overruled = {}, []
    for name, text in config.variables.items():
        if name not in environment and name not in in_file:
            value = fill(config, name, text, run)
            if value is not None:
                variables[name] = value
            continue
        try:
            preset = fill(config, name, text, run)
        except DtkError:  # The user's value makes the missing key unnecessary.
            preset = text
        own = environment.get(name, in_file.get(name, ""))
        if preset is not None and own != preset:
            overruled.append(
                OwnVariable(name, own, preset, ENVIRONMENT if name in environment or file is None else str(file.path))
            )
    return Rendered(config.name, variables, tuple(overruled))


def fill(config: NCCLConfig, name: str, text: str, run: Path | None) -> str | None:
    """Return a value with its placeholders replaced, None for a null optional key; DtkError if another key is null."""
    for key, optional in _BRACES.findall(text):
        value = run if key == RUN else getattr(config, key)
        if value is None and optional:
            return None
        if value is None and key != RUN:
            fix = f"nccl.{key}={_EXAMPLES.get(key, 'NUMBER')}, or set {name} yourself"
            what = f"nccl={config.name} needs nccl.{key}"
            raise MissingKeyError(what, f"{name} names it, and it is not guessed", fix, key)
    values = {key: str(getattr(config, key)) for key in KEYS} | ({} if run is None else {RUN: str(run.absolute())})
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)


def placeholders(config: NCCLConfig) -> set[str]:
    """Return the keys that the values of a section refer to."""
    return {key for text in config.variables.values() for key, _ in _BRACES.findall(text) if key != RUN}


def check_preset(
    config: NCCLConfig, backend: str, environment: Mapping[str, str], interfaces: Sequence[str] | None
) -> None:
    """Reject a preset that does not match the backend, or names missing devices or files, with a DtkError.

    `interfaces` are those of this machine; None = unknown.
    """
    check_address_range(config.address_range)
    if config.backend not in ("any", backend):
        other = " or nccl=cpu_gloo" if backend == "gloo" else ""
        raise _errors("backend", config=config, own=_BACKENDS[config.backend], ranks=_BACKENDS[backend], other=other)
    for key in ("interface", "hca"):
        value = getattr(config, key)
        _errors.refuse({"names": value is not None and not _LIST.fullmatch(value)}, key=key, value=value)
    for name, text in config.variables.items():
        rules = {"family": not _FAMILIES.fullmatch(name), "line_break": "\0" in text or "\n" in text}
        fix = f"set it yourself: export {name}=..." if name.isidentifier() else ""
        _errors.refuse(rules, name=name, fix=fix)
    names = config.interface.split(",") if config.interface and "interface" in placeholders(config) else []
    if interfaces and (absent := [name for name in names if name not in interfaces]):
        raise _errors("absent", config=config, absent=absent, interfaces=[*interfaces])
    try:
        render(config, environment)
    except MissingKeyError as error:
        if error.key == "interface" and interfaces:
            why = f"{error.why}; this machine has {', '.join(interfaces)}"
            raise DtkError(error.what, why, error.fix) from None
        raise


def check_address_range(text: str | None) -> None:
    """Reject a text that is not a network in NCCL's notation ADDRESS/BITS; DtkError if the text is not a network."""
    if text is None:
        return
    bits = text.partition("/")[2]
    try:
        ipaddress.ip_network(text, strict=False)
        good = bits.isascii() and bits.isdigit()
    except ValueError:
        good = False
    _errors.refuse({"address_range": not good}, text=text)
