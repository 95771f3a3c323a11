"""Name, interfaces and ports of this machine, as needed for the rendezvous of ranks. Standard library only."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from diagnostics.analysis.environment.addresses import interface_inside
from diagnostics.contract.files import kernel_text
from diagnostics.runs.records import reason
from dtk.doctor.model import Finding, Result, Scope, finding, judged, not_applicable
from dtk.launch.processes import free_port

INTERFACES = Path("/sys/class/net")
SLOW_NAME_S = 1.0  # Chosen: lookups take milliseconds; a single timeout of a resolver takes seconds.
PORT = 29500  # Default port of torchrun and env://.
UP = 0x1  # Flag of an interface that is switched on (IFF_UP).
FEW_ERRORS, ERROR_SHARE = 100, 1e-4  # Chosen: an interface is reported above both, errors and errors per packet.
LOOPBACK_S = 2.0  # Chosen: a message over loopback takes microseconds.
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def hostname(scope: Scope) -> Result:
    """Check that this machine's own name, by which gloo finds its address, and MASTER_ADDR resolve."""
    name = socket.gethostname()
    began = time.monotonic()
    findings, addresses = _own_name(name, scope.nodes > 1)
    seconds = time.monotonic() - began
    if seconds > SLOW_NAME_S and addresses:
        findings.append(finding("name_slow", name=name, seconds=seconds, address=addresses[0]))
    master = os.environ.get("MASTER_ADDR")
    if master:
        try:
            socket.getaddrinfo(master, None)
        except OSError as error:
            findings.append(finding("master_unresolved", master=master, why=reason(error)))
    measures = {"host": name, "addresses": addresses, "seconds": round(seconds, 3)}
    return judged(findings, f"{name} resolves to {', '.join(addresses)}", measures=measures)


def _own_name(name: str, several_nodes: bool) -> tuple[list[Finding], list[str]]:
    """Return findings on this machine's own name, by which gloo is reached from other nodes, and its addresses."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        consequence = "other nodes cannot reach it" if several_nodes else "gloo uses loopback instead"
        why = reason(error)
        return [finding("name_unresolved", bad=several_nodes, name=name, why=why, consequence=consequence)], []
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    findings = []
    if all(_unbound(address, 0) for address in addresses):
        findings.append(finding("name_of_another", bad=several_nodes, name=name, addresses=", ".join(addresses)))
    elif several_nodes and all(address.startswith("127.") or address == "::1" for address in addresses):
        findings.append(finding("name_loopback", name=name, address=addresses[0]))
    return findings, addresses


def _unbound(address: str, port: int) -> str:
    """Return why a socket cannot be bound to an address and a port; empty if it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        return reason(error)
    return ""


def interfaces(scope: Scope, folder: Path = INTERFACES) -> Result:
    """Check interfaces that are up and those that variables name; `folder` has the layout of /sys/class/net."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_dir())
        flags = {path.name: int(kernel_text(path / "flags") or "0", 16) for path in paths}
    except OSError:
        return not_applicable(f"{folder} is not there: this is not Linux")
    up = [name for name, bits in flags.items() if bits & UP]
    findings = []
    if "lo" in flags and "lo" not in up:
        findings.append(finding("loopback_down"))
    outward = [name for name in up if not interface_inside(name)]
    if not outward and scope.nodes > 1:
        findings.append(finding("no_way_out"))
    findings += [finding for variable in VARIABLES for finding in _named(variable, flags)]
    if scope.nodes > 1 and len(outward) > 1 and not any(os.environ.get(name) for name in VARIABLES):
        findings.append(finding("several_ways", names=", ".join(outward), first=outward[0]))
    about = {name: _about(folder / name) for name in up}
    lines = []
    for name, facts in about.items():
        speed = facts["speed_mbit_per_s"]
        lines.append(f"{name}  {f'{speed / 1000:g} Gb/s' if speed else 'speed unknown'}, MTU {facts['mtu']}")
        for way in ("rx", "tx"):
            packets, errors = facts[f"{way}_packets"] or 0, facts[f"{way}_errors"] or 0
            if errors > FEW_ERRORS and errors > ERROR_SHARE * packets:
                findings.append(finding("broken_packets", name=name, errors=errors, packets=packets, way=way))
    common = {f"MTU of {name}": str(about[name]["mtu"]) for name in outward if about[name]["mtu"]}
    fine = f"up: {', '.join(up) or 'none'}"
    return judged(findings, fine, details=lines, measures={"interfaces": about}, common=common)


def _about(path: Path) -> dict[str, int | None]:
    """Return speed, MTU and counters of one interface; None where they are not reported."""
    names = {"speed_mbit_per_s": "speed", "mtu": "mtu"}
    names |= {f"{way}_{what}": f"statistics/{way}_{what}" for way in ("rx", "tx") for what in ("packets", "errors")}
    texts = {key: kernel_text(path / file) for key, file in names.items()}  # -1 = unknown.
    return {key: int(text) if text.isdigit() else None for key, text in texts.items()}


def _named(variable: str, flags: dict[str, int]) -> Iterator[Finding]:
    """Check the interfaces that a variable names: by prefix for NCCL (`=` exact, `^` exclusion), exactly for gloo."""
    value = os.environ.get(variable, "")
    if not value or (value.startswith("^") and variable.startswith("NCCL")):
        return
    exact = value.startswith("=") or not variable.startswith("NCCL")
    interfaces = [name.split(":")[0] for name in value.lstrip("=").split(",") if name]
    there = ", ".join(flags)
    fits = {w: [name for name in flags if (name == w if exact else name.startswith(w))] for w in interfaces}
    for w, names in fits.items():
        if not names and (not variable.startswith("NCCL") or not any(fits.values())):
            yield finding("no_such_interface", variable=variable, value=value, wanted=w, there=there)
        if names and not any(flags[name] & UP for name in names):
            yield finding("interface_down", variable=variable, value=value, name=names[0])


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
        chosen, free = "" if named is None else " that you named", free_port()
        findings.append(finding("port_taken", bad=named is not None, port=port, named=chosen, why=why, other=free))
    if scope.port is None and variable and valid is None:
        findings.append(finding("no_port", port=variable))
    return judged(findings, f"port {port} is free, loopback answers", measures={"port": port})


def _loopback() -> list[Finding]:
    """Send a message over loopback, which every rendezvous on one machine needs, and return findings if that fails."""
    try:
        with socket.socket() as server:
            server.settimeout(LOOPBACK_S)
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=LOOPBACK_S) as client:
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b"dtk")
                    received = client.recv(3)
    except OSError as error:
        return [finding("loopback_fails", why=reason(error))]
    return [] if received == b"dtk" else [finding("loopback_loses")]
