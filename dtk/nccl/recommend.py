"""Which preset fits this machine, and why. Asks for what only the user knows (nodes, an interface)."""

from dataclasses import dataclass

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import counted, first_of
from dtk.nccl.machine import Machine

FIXED_DRIVER = (550, 40, 7)
"""First driver with which several RTX 40 GPUs do not hang (nccl-tests issue 117 and its follow-ups)."""
RACK = ("GB200", "GB300")
DOCKER_SHM_BYTES = 64 << 20  # Default size of /dev/shm in a container.
MEGA_INTERFACES, HIGH_INTERFACES = 9, 5
"""Interfaces of Google's a3-megagpu-8g and a3-highgpu-8g: one of the host, the rest for GPUs."""


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
