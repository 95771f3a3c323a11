"""Helpers for starting dtk's processes: an environment in which they find dtk, a free port, termination by SIGTERM."""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dtk.config.folders import source_tree


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with dtk's source tree first on PYTHONPATH; unchanged if dtk is installed."""
    root = source_tree()
    if root is None:
        return dict(environment)
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root)}


def free_port() -> int:
    """Return a port of this machine that is currently free."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def killed_by(name: str) -> str:
    """Return `killed by SIGKILL`, with what that signal usually means."""
    hint = " (the kernel does this when memory runs out: see dmesg)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make the first SIGTERM end the block as Ctrl-C does, so that the processes it started do not outlive it.

    Further ones change nothing: what the block still does, such as its report, is not lost.
    """

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # Not SIG_IGN, which processes started from now on inherit.
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
