"""Names, interfaces and ports of this machine, as ranks need them to meet. Standard library only."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dtk.doctor.model import Check, Finding, Result, failure, graded, judged, not_applicable, warning
from dtk.doctor.scope import Scope
from dtk.launch.processes import free_port

TOPIC = "network"
INTERFACES = Path("/sys/class/net")
SLOW_NAME_S = 1.0  # Answers take milliseconds; a resolver that times out once takes seconds.
PORT = 29500  # What torchrun and env:// take when nobody says anything.
VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "tun", "ifb", "dummy")
"""Beginnings of the names of interfaces that lead to no other machine."""
UP = 0x1  # Flag of an interface that is switched on (IFF_UP).
FEW_ERRORS = 100  # Broken packets, and one in 10,000, from which on an interface is reported.
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def hostname(scope: Scope) -> Result:
    """Check that this machine's own name, by which gloo finds its address, and MASTER_ADDR resolve."""
    name = socket.gethostname()
    began = time.monotonic()
    findings, addresses = _own_name(name, scope.nodes > 1)
    seconds = time.monotonic() - began
    if seconds > SLOW_NAME_S and addresses:
        command = f"echo '{addresses[0]} {name}' | sudo tee -a /etc/hosts"
        text = f"resolving {name} took {seconds:.1f} s"
        findings.append(warning(text, "ask the hosts file before a name server", command))
    master = os.environ.get("MASTER_ADDR")
    if master:
        try:
            socket.getaddrinfo(master, None)
        except OSError as error:
            what = "name the first node by an address that all nodes reach"
            text = f"MASTER_ADDR={master} does not resolve: {_why(error)}"
            findings.append(failure(text, what, "export MASTER_ADDR=ADDRESS"))
    measures = {"host": name, "addresses": addresses, "seconds": round(seconds, 3)}
    return judged(findings, f"{name} is {', '.join(addresses)}", measures=measures)


def _own_name(name: str, several_nodes: bool) -> tuple[list[Finding], list[str]]:
    """Return findings on this machine's own name, by which gloo is reached from other nodes, and its addresses."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        consequence = "other nodes cannot reach it" if several_nodes else "gloo uses loopback instead"
        text = f"the host name {name} does not resolve ({_why(error)}): {consequence}"
        command = f"echo 'ADDRESS {name}' | sudo tee -a /etc/hosts"
        return [graded(several_nodes, text, "give it one", command)], []
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    findings = []
    if all(_unbound(address, 0) for address in addresses):
        text = f"the host name {name} is {', '.join(addresses)}, which is no address of this machine"
        what = "give the name an address of this machine"
        findings.append(graded(several_nodes, text, what, "hostname -I; sudoedit /etc/hosts"))
    elif several_nodes and all(address.startswith("127.") or address == "::1" for address in addresses):
        text = f"the host name {name} is {addresses[0]}: other nodes would talk to themselves"
        what = "give the name its address in the network, or name the interface"
        findings.append(failure(text, what, "export GLOO_SOCKET_IFNAME=NAME"))
    return findings, addresses


def _unbound(address: str, port: int) -> str:
    """Return why a socket cannot be bound to an address and a port; empty = it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        return _why(error)
    return ""


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def judge_interfaces(folder: Path, several_nodes: bool) -> Result:
    """Interfaces that are up, and those that variables name; `folder` has the form of /sys/class/net."""
    try:
        flags = {path.name: int(_read(path / "flags") or "0", 16) for path in sorted(folder.iterdir()) if path.is_dir()}
    except OSError:
        return not_applicable(f"{folder} is not there: this is no Linux")
    up = [name for name, bits in flags.items() if bits & UP]
    findings = []
    if "lo" in flags and "lo" not in up:
        text = "loopback (lo) is down: ranks of one machine cannot meet"
        findings.append(failure(text, "switch it on", "sudo ip link set lo up"))
    outward = [name for name in up if name != "lo" and not name.startswith(VIRTUAL)]
    if not outward and several_nodes:
        text = "no interface leads to another machine"
        findings.append(failure(text, "see the interfaces", "ip -brief address"))
    findings += [finding for variable in VARIABLES for finding in _named(variable, flags)]
    if several_nodes and len(outward) > 1 and not any(os.environ.get(name) for name in VARIABLES):
        several = f"several interfaces lead to other machines ({', '.join(outward)})"
        text = f"{several}, and no variable says which one to use: ranks may choose different ones"
        command = f"export NCCL_SOCKET_IFNAME=={outward[0]} GLOO_SOCKET_IFNAME={outward[0]}"
        findings.append(warning(text, "set the one that connects the nodes, on all nodes", command))
    about = {name: _about(folder / name) for name in up}
    lines = []
    for name, facts in about.items():
        speed = facts["speed_mbit_per_s"]
        lines.append(f"{name}  {f'{speed / 1000:g} Gb/s' if speed else 'speed unknown'}, MTU {facts['mtu']}")
        for way in ("rx", "tx"):
            packets, errors = facts[f"{way}_packets"] or 0, facts[f"{way}_errors"] or 0
            if errors > FEW_ERRORS and errors * 10_000 > packets:
                text = f"{name}: {errors:,} broken packets of {packets:,} ({way})"
                fix = "see what kind; change cable, transceiver or port"
                findings.append(warning(text, fix, f"ip -s -s link show {name}"))
    common = {f"MTU of {name}": str(about[name]["mtu"]) for name in outward if about[name]["mtu"]}
    fine = f"up: {', '.join(up) or 'none'}"
    return judged(findings, fine, details=lines, measures={"interfaces": about}, common=common)


def _about(path: Path) -> dict[str, int | None]:
    """Speed, MTU and counters of one interface; null where it does not tell."""
    names = {"speed_mbit_per_s": "speed", "mtu": "mtu"}
    names |= {f"{way}_{what}": f"statistics/{way}_{what}" for way in ("rx", "tx") for what in ("packets", "errors")}
    texts = {key: _read(path / file) or "" for key, file in names.items()}  # -1 = unknown.
    return {key: int(text) if text.isdigit() else None for key, text in texts.items()}


def _named(variable: str, flags: dict[str, int]) -> Iterator[Finding]:
    """Interfaces that a variable asks for: by prefix for NCCL (`=` exact, `^` all but these), exact names for gloo."""
    value = os.environ.get(variable, "")
    if not value or (value.startswith("^") and variable.startswith("NCCL")):
        return
    exact = value.startswith("=") or not variable.startswith("NCCL")
    wanted = [name.split(":")[0] for name in value.lstrip("=").split(",") if name]
    there = ", ".join(flags)
    fits = {w: [name for name in flags if (name == w if exact else name.startswith(w))] for w in wanted}
    for w, names in fits.items():
        if not names and (not variable.startswith("NCCL") or not any(fits.values())):
            text = f"{variable}={value}: there is no interface {w} here ({there})"
            yield failure(text, f"name one of {there}, or let it be chosen", f"unset {variable}")
        if names and not any(flags[name] & UP for name in names):
            text = f"{variable}={value}: {names[0]} is down"
            yield failure(text, "switch it on, or choose another", f"sudo ip link set {names[0]} up")


def _read(path: Path) -> str | None:
    """First line of a file of the kernel; None when it does not answer (an interface that is down has no speed)."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def ports(scope: Scope) -> Result:
    """Check that the rendezvous port is free and that loopback carries a message."""
    findings = _loopback()
    if scope.under_launcher:
        return judged(findings, "loopback answers; the rendezvous port is in use by this job's own launcher")
    variable = os.environ.get("MASTER_PORT", "")
    valid = int(variable) if variable.isdecimal() and 0 < int(variable) < 65536 else None
    named = scope.port if scope.port is not None else valid
    port = PORT if named is None else named
    if why := _unbound("", port):
        text = f"port {port}{'' if named is None else ' that you named'} cannot be listened on: {why}"
        what = f"choose another one (torchrun --master-port {free_port()}), or see who listens"
        findings.append(graded(named is not None, text, what, f"ss -ltnp 'sport = :{port}'"))
    if scope.port is None and variable and valid is None:
        text = f"MASTER_PORT={variable} is no port (1 to 65535)"
        findings.append(failure(text, "give a number", "export MASTER_PORT=29500"))
    return judged(findings, f"port {port} is free, loopback answers", measures={"port": port})


def _loopback() -> list[Finding]:
    """Send a message over loopback, which every rendezvous on one machine needs, and return findings if that fails."""
    try:
        with socket.socket() as server:
            server.settimeout(2)
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=2) as client:
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b"dtk")
                    received = client.recv(3)
    except OSError as error:
        what = "look at the interface and at the firewall"
        command = "ip address show lo; sudo iptables -L INPUT -n"
        return [failure(f"loopback does not work: {_why(error)}", what, command)]
    return [] if received == b"dtk" else [failure("loopback loses what is sent")]


UP_AND_NAMED = "interfaces up, those that variables name, broken packets"
CHECKS = (
    Check("hostname", TOPIC, "this machine's name and MASTER_ADDR resolve, quickly, to the right address", hostname),
    Check("interfaces", TOPIC, UP_AND_NAMED, lambda scope: judge_interfaces(INTERFACES, scope.nodes > 1)),
    Check("ports", TOPIC, "the rendezvous port is free, loopback works", ports),
)
