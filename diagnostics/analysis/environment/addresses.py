"""Addresses and interfaces that other nodes cannot reach: loopback, link-local, bridges and ends of containers."""

from ipaddress import ip_address, ip_network

from diagnostics.contract.files import patterns_beside, table_beside

_NETWORKS = {
    reach: {ip_network(network): title for network, title in networks.items()}
    for reach, networks in table_beside(__file__)["networks"].items()
}
_TEXT = patterns_beside(__file__, "patterns")


def network_inside(reach: str, address: object) -> str:
    """Return the kind of an address that is valid within a link or a node (`reach`) only; else "".

    `reach` is `link` or `node`; NCCL and gloo print an address as `10.0.0.1<41000>` or `[fe80::1%eth0]<41000>`.
    """
    host = _TEXT["host"].match(str(address))
    try:
        at = ip_address(host[1] if host else "")
    except ValueError:
        return ""
    return next((title for network, title in _NETWORKS[reach].items() if at in network), "")


def interface_inside(name: str) -> bool:
    """Return whether no other node can be reached through a network interface, judged by its name."""
    return _TEXT["inside"].match(name) is not None
