"""Addresses and interfaces that do not leave a node or a link, as NCCL and gloo print them."""

import pytest

from diagnostics.analysis.environment.addresses import interface_inside, network_inside


@pytest.mark.parametrize(
    ("address", "reach", "words"),
    [
        ("127.0.0.1<41000>", "node", "loopback"),
        ("[127.0.1.1]:4711", "node", "loopback"),
        ("::1<41000>", "node", "loopback"),
        ("172.17.0.1<43531>", "node", "docker0"),
        ("172.17.255.3", "node", "docker0"),
        ("192.168.122.1<5>", "node", "virbr0"),
        ("169.254.7.9<21724>", "link", "link-local"),
        ("[fe80::1%eth0]<21724>", "link", "link-local"),
        ("fe80::5e6f:69ff<1>", "link", "link-local"),
    ],
)
def test_an_address_that_others_cannot_reach(address: str, reach: str, words: str) -> None:
    assert words in network_inside(reach, address)
    assert not network_inside("link" if reach == "node" else "node", address)


@pytest.mark.parametrize(
    "address", ["10.0.0.4<1>", "172.18.0.1<1>", "[2001:db8::1]<5>", "node-3<5>", "", None, "999.1.1.1<2>", "x<1>"]
)
def test_an_address_that_others_may_reach(address: str | None) -> None:
    assert not network_inside("node", address) and not network_inside("link", address)


@pytest.mark.parametrize("name", ["lo", "lo0", "docker0", "veth12ab", "br-5f0e", "cni0", "tunl0", "nodelocaldns"])
def test_an_interface_that_leads_to_no_other_node(name: str) -> None:
    assert interface_inside(name)


@pytest.mark.parametrize("name", ["eth0", "ib0", "enp3s0", "bond0", "local0", "tun0", "bridge_of_racks"])
def test_an_interface_that_may_lead_to_another(name: str) -> None:
    assert not interface_inside(name)
