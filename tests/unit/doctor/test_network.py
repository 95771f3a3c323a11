"""Network: names, interfaces and ports, every bad case really made."""

import socket
import subprocess

import pytest

from dtk.doctor import network
from dtk.doctor.model import Scope
from tests.unit.doctor.machines import ask, unshared


def test_a_host_name_that_does_not_resolve():
    prefix = [*unshared("--uts"), "sh", "-c", 'hostname nowhere-at-all.invalid && exec "$@"', "sh"]
    status, text, commands = ask("network.hostname(Scope(Path()))", "network", prefix=prefix)
    assert status == "warning"
    assert "nowhere-at-all.invalid does not resolve" in text
    assert "/etc/hosts" in commands[0]
    status, text, _ = ask("network.hostname(Scope(Path(), nodes=2))", "network", prefix=prefix)
    assert status == "failure"
    assert "other nodes cannot reach it" in text


def test_a_host_name_of_another_machine_or_of_loopback(scope):
    findings, addresses = network._own_name("192.0.2.7", False)
    assert (findings[0].status, addresses) == ("warning", ["192.0.2.7"])
    assert "not an address of this machine" in findings[0].text
    assert network._own_name("localhost", False)[0] == []
    (finding,) = network._own_name("localhost", True)[0]
    assert finding.status == "failure"
    assert "connect to themselves" in finding.text


def test_master_addr_that_does_not_resolve(scope, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-node.invalid")
    result = network.hostname(scope)
    assert result.status == "failure"
    assert "MASTER_ADDR=no-such-node.invalid does not resolve" in result.summary


def test_loopback_that_is_down():
    prefix = [*unshared("--net", "--mount"), "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("/sys of a network namespace cannot be mounted here")
    status, text, commands = ask("network.interfaces(Scope(Path()))", "network", prefix=prefix)
    assert (status, commands) == ("failure", ["sudo ip link set lo up"])
    assert text.startswith("loopback (lo) is down")
    status, text, _ = ask("network.ports(Scope(Path()))", "network", prefix=prefix)
    assert (status, text.split(":")[0]) == ("failure", "loopback does not work")


def interface(folder, name, flags="0x1003", **files):
    path = folder / name
    (path / "statistics").mkdir(parents=True)
    for file, text in {"flags": flags, "mtu": "1500", **files}.items():
        (path / file.replace("__", "/")).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("variable", "value", "status", "text"),
    [
        ("NCCL_SOCKET_IFNAME", "eth9", "failure", "there is no interface eth9 here (eth0, eth1, lo)"),
        ("NCCL_SOCKET_IFNAME", "=eth", "failure", "there is no interface eth here"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok", "up: eth0, lo"),
        ("NCCL_SOCKET_IFNAME", "^docker", "ok", "up: eth0, lo"),
        ("NCCL_SOCKET_IFNAME", "ib,eth0", "ok", "up: eth0, lo"),
        ("GLOO_SOCKET_IFNAME", "eth", "failure", "there is no interface eth here"),
        ("GLOO_SOCKET_IFNAME", "eth1", "failure", "GLOO_SOCKET_IFNAME=eth1: eth1 is down"),
    ],
)
def test_interfaces_that_variables_name(tmp_path, monkeypatch, variable, value, status, text):
    interface(tmp_path, "lo", "0x9")
    interface(tmp_path, "eth0")
    interface(tmp_path, "eth1", "0x1002")
    monkeypatch.setenv(variable, value)
    result = network.interfaces(Scope(tmp_path), tmp_path)
    assert result.status == status, result
    assert text in result.summary


def test_interfaces_between_nodes(tmp_path):
    interface(tmp_path, "lo", "0x9")
    interface(tmp_path, "docker0")
    alone = network.interfaces(Scope(tmp_path, nodes=2), tmp_path)
    assert (alone.status, alone.summary) == ("failure", "no interface connects to another machine")
    interface(tmp_path, "eth0")
    assert network.interfaces(Scope(tmp_path, nodes=2), tmp_path).status == "ok"
    interface(tmp_path, "eth1", mtu="9000")
    several = network.interfaces(Scope(tmp_path, nodes=2), tmp_path)
    assert several.status == "warning"
    assert several.remedies[0].command == "export NCCL_SOCKET_IFNAME==eth0 GLOO_SOCKET_IFNAME=eth0"
    assert several.common == {"MTU of eth0": "1500", "MTU of eth1": "9000"}


def test_an_interface_that_breaks_packets(tmp_path):
    interface(tmp_path, "eth0", statistics__rx_packets=1_000_000, statistics__rx_errors=5000)
    result = network.interfaces(Scope(tmp_path), tmp_path)
    assert (result.status, result.summary) == ("warning", "eth0: 5,000 broken packets of 1,000,000 (rx)")


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        named = network.ports(Scope(tmp_path, port=port))
        assert named.status == "failure"
        assert named.summary == f"cannot listen on port {port} that you named: Address already in use"
        assert named.remedies[0].command == f"ss -ltnp 'sport = :{port}'"
        monkeypatch.setenv("MASTER_PORT", str(port))
        assert network.ports(Scope(tmp_path)).status == "failure"
        assert network.ports(Scope(tmp_path, under_launcher=True)).status == "ok", "it is the launcher's own"
        monkeypatch.delenv("MASTER_PORT")
        monkeypatch.setattr(network, "PORT", port)
        assert network.ports(Scope(tmp_path)).status == "warning", "nobody asked for that one"
    assert network.ports(Scope(tmp_path, port=port)).status == "ok"


def test_a_port_that_is_none(scope, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "70000")
    result = network.ports(scope)
    assert (result.status, result.summary) == ("failure", "MASTER_PORT=70000 is not a port (1 to 65535)")
