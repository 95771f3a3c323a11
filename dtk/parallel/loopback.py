"""A store and an interface for ranks on one machine that other machines cannot reach: by default TCPStore and gloo
listen on every interface, so anybody with network access could read and write what the ranks exchange.
"""

import ipaddress
import os
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

ADDRESS = "127.0.0.1"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve_store(port: int = 0, timeout_s: float = 300.0) -> "TCPStore":
    """Open a store on loopback; port 0 = a free one, `timeout_s` for `get` and `wait`. OSError if the port is taken."""
    from torch._C._distributed_c10d import TCPStore  # Commands that only need the variables skip this import.

    listener = socket.create_server((ADDRESS, port))
    return TCPStore(
        ADDRESS,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def interface_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that keep the connections of gloo and NCCL on loopback, for ranks that share one machine.

    A variable that the user has set is not changed.
    """
    return {name: INTERFACE for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in environment}
