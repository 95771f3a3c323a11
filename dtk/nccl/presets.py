"""The presets of conf/nccl as values: variables and reasons; and which one fits this machine. Uses no Hydra."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.catalogue import catalogue, version_text
from diagnostics.contract.files import read_record, table_beside
from diagnostics.contract.formatting import counted, first_of
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.config.folders import groups, search_path
from dtk.config.help import description
from dtk.config.schema import NCCLConfig
from dtk.config.strict import section_from_plain
from dtk.errors import DtkError, refused
from dtk.nccl.machine import Machine

GROUP = "nccl"
DEFAULT = "auto"
WHOLE = "preset"  # Key of `about` that applies to all variables.
ABOUT = ("why", "source", "versions", "harms", "remove")  # Keys that describe a variable.
ABOUT_WHOLE = ("source", "versions", "harms", "remove", "advice", "tune")  # Keys that describe a preset.
ELSEWHERE = "read by a plugin or another library, not by NCCL"
FIXED_DRIVER = (550, 40, 7)
"""First driver with which several RTX 40 GPUs do not hang (nccl-tests issue 117 and its follow-ups)."""
RACK = ("GB200", "GB300")
DOCKER_SHM_BYTES = 64 << 20  # Default size of /dev/shm in a container.
MEGA_INTERFACES, HIGH_INTERFACES = 9, 5
"""Interfaces of Google's a3-megagpu-8g and a3-highgpu-8g: one of the host, the rest for GPUs."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable of a preset."""

    name: str
    value: str
    """The value in the file, with placeholders such as `{interface}`."""
    why: str
    source: str
    versions: str
    """Versions of NCCL that read the variable."""
    harms: str
    """When the variable is harmful."""
    remove: str
    """When to remove the variable."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One file of conf/nccl."""

    name: str
    summary: str
    path: Path
    config: NCCLConfig
    settings: tuple[Setting, ...]

    @property
    def about(self) -> dict[str, str]:
        """Facts about the whole preset."""
        return self.config.about.get(WHOLE, {})


def read_presets(config_dir: Path | None = None) -> dict[str, Preset]:
    """Return all presets by name, both built-in and custom; DtkError if a file is damaged."""
    presets, problems = readable_presets(config_dir)
    for problem in problems.values():
        raise problem
    return presets


def readable_presets(config_dir: Path | None = None) -> tuple[dict[str, Preset], dict[str, DtkError]]:
    """Return the presets by name, and the errors of damaged ones; DtkError if there is no such folder."""
    paths = groups(search_path(config_dir)).get(GROUP, {})
    presets: dict[str, Preset] = {}
    problems: dict[str, DtkError] = {}
    try:
        common = _about_of_default(paths)
    except DtkError:  # Reported below, where the default preset itself is read.
        common = {}
    for name, path in paths.items():
        try:
            presets[name] = _read(path, common)
        except DtkError as error:
            problems[name] = error
    return presets, problems


def find_preset(name: str, config_dir: Path | None = None) -> Preset:
    """Return one preset; DtkError if the preset does not exist, or its file is damaged."""
    paths = groups(search_path(config_dir)).get(GROUP, {})
    if name not in paths:
        raise DtkError(f'there is no preset "{name}"', fix=did_you_mean(name, paths) or f"presets: {', '.join(paths)}")
    return _read(paths[name], _about_of_default(paths))


def _about_of_default(paths: dict[str, Path]) -> dict[tuple[str, str], dict[str, str]]:
    """Return (variable, value) of the default preset -> its description; other presets need not repeat it."""
    if DEFAULT not in paths:
        return {}
    default = _read(paths[DEFAULT], {})
    return {(s.name, s.value): asdict(s) for s in default.settings if s.name in default.config.about}


def _read(path: Path, common: dict[tuple[str, str], dict[str, str]]) -> Preset:
    """Read and check a preset; raise DtkError if its file cannot be read or is not an `nccl` section."""
    with refused(f"cannot read {path}", "", ValueError):
        values: Any = load_yaml(read_record(path), Limits())
    try:
        config: NCCLConfig = section_from_plain(NCCLConfig, values, GROUP)
    except DtkError as error:
        raise DtkError(f"{path}: {error.what}", error.why, error.fix) from error
    for name, texts in config.about.items():
        allowed = ABOUT_WHOLE if name == WHOLE else ABOUT
        if name != WHOLE and name not in config.variables:
            raise DtkError(f"{path}: about.{name} is about a variable that the preset does not set")
        for key in texts:
            if key not in allowed:
                raise DtkError(f"{path}: unknown key about.{name}.{key}", fix=f"keys: {', '.join(allowed)}")
    whole = {key: text for key, text in config.about.get(WHOLE, {}).items() if key in ABOUT}
    settings = []
    for name, value in config.variables.items():
        texts_of = {**whole, **config.about[name]} if name in config.about else common.get((name, value), whole)
        variable = catalogue().nccl.get(name)  # The linter knows which releases read the variable.
        read_by = f"NCCL {version_text(variable.since)} and newer" if variable and variable.since else ""
        versions = config.about.get(name, {}).get("versions") or read_by or texts_of.get("versions") or ELSEWHERE
        texts = {key: texts_of.get(key, "") for key in ABOUT if key != "versions"}
        settings.append(Setting(name=name, value=value, versions=versions, **texts))
    return Preset(path.stem, description(path), path, config, tuple(settings))


@dataclass(frozen=True, slots=True)
class Advice:
    """One preset for one case."""

    case: str
    """`one node`, `several nodes`."""
    preset: str
    because: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Required overrides, as typed on the command line."""


def recommend(machine: Machine, nodes: int | None) -> tuple[list[Advice], list[str]]:
    """Return presets and further advice for this machine. Without `nodes`, cover one node and several nodes."""
    if not machine.gpus:
        needs = _interface(machine) if (nodes or 1) > 1 else ()
        reason = f"no GPU was found ({machine.gpu_reason}), so ranks communicate over gloo"
        return [Advice("any number of nodes", "cpu_gloo", (reason,), needs)], _besides(machine)
    advice = [_one_node(machine)] if nodes in (None, 1) else []
    advice += [_several_nodes(machine)] if nodes != 1 else []
    return advice, _besides(machine)


def _one_node(machine: Machine) -> Advice:
    names = sorted({gpu.name for gpu in machine.gpus})
    gpus = f"{counted(len(machine.gpus), 'GPU')}: {', '.join(names)}"
    if machine.nvlink:
        links = min(gpu.nvlinks or 0 for gpu in machine.gpus)
        reason = f"every GPU has {links} or more NVLinks up, which NCCL uses automatically"
        return Advice("one node", "nvlink_single_node", (gpus, reason))
    driver = tuple(int(part) for part in machine.driver.split(".") if part.isdigit())
    if len(machine.gpus) > 1 and () < driver < FIXED_DRIVER and all("RTX 40" in gpu.name for gpu in machine.gpus):
        reason = f"several RTX 40 cards with driver {machine.driver}, older than 550.40.07, hang in peer-to-peer copies"
        return Advice("one node", "pcie_no_p2p", (gpus, reason))
    why = {True: "NVML reports P2P access between all pairs", False: "NVML reports a pair without P2P access"}
    reasons = [gpus, "not all of them have NVLink: NCCL copies over PCIe, or through host memory if necessary"]
    reasons += [why[machine.p2p]] if machine.p2p is not None else []
    reasons += ["if the first collective hangs: nccl=pcie_no_p2p"] if len(machine.gpus) > 1 else []
    return Advice("one node", "auto", tuple(reasons))


def _several_nodes(machine: Machine) -> Advice:
    """Return the preset of the first matching rule: racks, clouds with their own devices, then RDMA devices by kind."""
    case = "several nodes"
    if any(name in gpu.name for gpu in machine.gpus for name in RACK):
        reach = f"{machine.gpus[0].name}: NVLink reaches the other nodes of the rack"
        beyond = "for nodes of one rack with an IMEX domain; over several racks use nccl=infiniband or nccl=roce"
        return Advice(case, "gb200_nvl72", (reach, beyond))
    if efa := [card.name for card in machine.rdma if card.driver == "efa"]:
        where = f"EC2 {machine.product}" if machine.cloud == "aws" else "devices of AWS"
        return Advice(case, "aws_efa", (f"{where} with {counted(len(efa), 'EFA device')} ({first_of(efa)})",))
    active = [card for card in machine.rdma if card.active]
    virtual = [interface.name for interface in machine.interfaces if interface.driver == "gve"]
    plugin = {MEGA_INTERFACES: "gcp_a3_mega", HIGH_INTERFACES: "gcp_a3_high"}.get(len(virtual))
    if machine.cloud == "gcp" and not active and plugin and sum("H100" in gpu.name for gpu in machine.gpus) == 8:
        reason = f"Google Cloud, 8 H100 and {len(virtual)} gVNIC interfaces ({first_of(virtual)})"
        return Advice(case, plugin, (reason, "source the installed plugin's own profile where there is one"))
    for rule in table_beside(__file__):
        cards = [card.name for card in active if card.link_layer == rule["link_layer"]]
        fits = machine.cloud == rule.get("cloud", machine.cloud)
        if cards and fits and all(name.startswith(rule.get("prefix", "")) for name in cards):
            reason = f"{rule['where'].format(counted(len(cards), rule.get('what', '')))} ({first_of(cards)})"
            return Advice(case, rule["preset"], (reason, *rule.get("more", ())), tuple(rule.get("needs", ())))
    reason = f"this machine has no {'active ' if machine.rdma else ''}RDMA device, so nodes communicate over TCP"
    return Advice(case, "tcp_ethernet", (reason,), _interface(machine))


def _interface(machine: Machine) -> tuple[str, ...]:
    up = [interface.name for interface in machine.interfaces if interface.up]
    names = up or [interface.name for interface in machine.interfaces]
    listed = f" (this machine has: {first_of(names)})" if names else ""
    return (f"nccl.interface=NAME, the interface that connects the nodes{listed}",)


def _besides(machine: Machine) -> list[str]:
    notes = []
    if machine.container and machine.shm_bytes is not None and machine.shm_bytes <= DOCKER_SHM_BYTES:
        size = f"{machine.shm_bytes >> 20} MiB"
        notes.append(f"this is a container with {size} in /dev/shm: see `dtk nccl show container` for its options")
    if machine.slurm and machine.gpus:
        notes.append("this is a Slurm job: see `dtk nccl show slurm` for cores and the port of the status service")
    if machine.rdma:
        notes.append("leave NCCL_IB_DISABLE unset: it would switch these RDMA devices off")
    return notes
