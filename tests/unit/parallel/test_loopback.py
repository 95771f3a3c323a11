"""Loopback only: which names mean this machine, and a store that nobody else can reach."""

import socket

import pytest

from dtk.parallel.loopback import ADDRESS, INTERFACE, interface_variables, is_loopback, serve_store


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "node-3", "", "127.0.0", "::2", "localhost.example.org"])
def test_other_machines(host: str) -> None:
    assert not is_loopback(host)


def test_a_store_answers_on_loopback_and_nowhere_else() -> None:
    store = serve_store(timeout_s=5.0)
    store.set("key", "value")
    assert store.get("key") == b"value" and store.port > 0
    with socket.create_connection((ADDRESS, store.port), timeout=5):
        pass
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", store.port), timeout=5):
        pass
    with pytest.raises(OSError):
        serve_store(store.port)


def test_what_the_user_set_stays() -> None:
    assert interface_variables({}) == {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
    assert interface_variables({"NCCL_SOCKET_IFNAME": "eth0"}) == {"GLOO_SOCKET_IFNAME": INTERFACE}
