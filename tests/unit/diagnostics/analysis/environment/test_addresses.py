"""Addresses that do not leave a node or a link, as NCCL and gloo print them."""

import pytest

from diagnostics.analysis.environment.addresses import network_inside


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
