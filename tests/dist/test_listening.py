"""Nothing of dtk can be reached from outside: every socket that a command's processes listen on is on loopback."""

import ipaddress
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("model=gpt2_tiny", "train.steps=3", "launcher.nproc=2", "checkpoint=off")
COMMANDS = {
    "run": ("run", "strategy=ddp", *SMALL),
    "run with restarts": ("run", "strategy=fsdp", "launcher.max_restarts=1", *SMALL),
    "bench": ("bench", "comm", "--op=all_reduce", "--max-size=4K", "--seconds=2", "--repeats=2", "launcher.nproc=2"),
    "doctor": ("doctor", "--only", "collectives_gloo"),
    "calibrate": ("plan", "--calibrate"),
    "preflight": ("preflight", "strategy=ddp", "model=gpt2_tiny", "launcher.world_size=2"),
}


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses and ports that a process and its descendants listen on."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        try:
            connections = one.net_connections(kind="inet")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        found |= {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_only_loopback_is_listened_on(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_SOCKET_IFNAME")}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    with (tmp_path / "output.log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dtk", *COMMANDS[name]], cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
        seen: set[tuple[str, int]] = set()
        watched = psutil.Process(process.pid)
        ends_s = time.monotonic() + 150
        while process.poll() is None and time.monotonic() < ends_s:
            seen |= listening(watched)
            time.sleep(0.05)
        process.kill()
    text = (tmp_path / "output.log").read_text()
    assert process.wait() == 0, text
    assert seen or name == "preflight", "no listening socket was seen at all: the test looks at the wrong processes"
    open_to_all = {address for address in seen if not ipaddress.ip_address(address[0]).is_loopback}
    assert not open_to_all, text
