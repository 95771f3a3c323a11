"""Limits, network and disk: every bad case really made, in a child process or on a tiny file system."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from dtk.doctor import disk, limits, network
from dtk.doctor.scope import Scope
from tests.unit.doctor import shim

ROOT = Path(__file__).parents[3]
ASK = """
import json, sys
from pathlib import Path
from dtk.doctor import {module}
from dtk.doctor.scope import Scope
result = {call}
print(json.dumps([result.status, result.summary, [r.command for r in result.remedies]]))
"""


def ask(call, module, *, before=None, prefix=(), **environment):
    """What a check answers in a process of its own, which `before` (preexec) or `prefix` (a command) has changed."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ASK.format(module=module, call=call)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def tiny(folder, options):
    """A file system of its own at a folder; skips where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def unshared(*flags):
    """A command prefix that takes a namespace of its own; skips where that is not allowed."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode:
        pytest.skip(f"unshare {' '.join(flags)} is not allowed here")
    return ["unshare", *flags]


# Shared memory


def test_shared_memory_that_is_large_enough(tmp_path):
    with tiny(tmp_path / "shm", "size=2g") as folder:
        result = limits.judge_shm(folder)
    assert (result.status, result.summary) == ("ok", "2 GiB free of 2 GiB")


def test_dockers_64_mib_are_a_warning(tmp_path):
    with tiny(tmp_path / "shm", "size=64m") as folder:
        result = limits.judge_shm(folder)
        assert list(folder.iterdir()) == [], "the trial leaves nothing"
    assert result.status == "warning"
    assert "64 MiB in all" in result.summary
    assert result.remedies[0].command == f"sudo mount -o remount,size=16g {folder}"


def test_shared_memory_that_is_too_small_or_full(tmp_path, monkeypatch):
    with tiny(tmp_path / "small", "size=8m") as folder:
        small = limits.judge_shm(folder)
    assert small.status == "failure"
    assert "32 MiB cannot be taken: No space left on device" in small.summary
    monkeypatch.setattr(limits, "SHM_BYTES", 64 << 20)  # To fill a real GiB would cost the machine a real GiB.
    with tiny(tmp_path / "full", "size=80m") as folder:
        with (folder / "nccl-left").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 70 << 20)
        full = limits.judge_shm(folder)
    assert full.status == "failure"
    assert full.remedies[0].command == f"ls -lS {folder} | head"


def test_no_shared_memory(tmp_path):
    result = limits.judge_shm(tmp_path / "none")
    assert result.status == "failure"
    assert "sudo mount -t tmpfs" in result.remedies[0].command


# Limits of a process


def lower(kind, soft, hard=None):
    return lambda: resource.setrlimit(kind, (soft, soft if hard is None else hard))


@pytest.mark.parametrize(
    ("soft", "hard", "status", "command"),
    [
        (256, 65536, "failure", "ulimit -n 65536"),
        (1024, 8192, "warning", "ulimit -n 8192"),
        (1024, 1024, "warning", "nofile.conf"),
        (8192, 8192, "ok", ""),
    ],
)
def test_open_files(soft, hard, status, command):
    hard = min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]) if hard == 65536 else hard
    command = command.replace("65536", str(min(65536, hard)))
    found = ask("limits.files(Scope(Path()))", "limits", before=lower(resource.RLIMIT_NOFILE, soft, hard))
    assert found[0] == status
    assert found[1].startswith(str(soft))
    assert command in "".join(found[2])


def test_locked_memory_matters_for_rdma(tmp_path):
    (tmp_path / "rdma" / "mlx5_0").mkdir(parents=True)
    lock = lower(resource.RLIMIT_MEMLOCK, 65536)
    call = f"limits.judge_memlock(Path({str(tmp_path / 'rdma')!r}))"
    status, text, commands = ask(call, "limits", before=lock)
    assert status == "failure"
    assert text.startswith("64 KiB of locked memory: RDMA (mlx5_0)")
    assert "memlock.conf" in commands[0]
    status, text, commands = ask(f"limits.judge_memlock(Path({str(tmp_path / 'none')!r}))", "limits", before=lock)
    assert (status, commands) == ("ok", [])
    assert "no RDMA device" in text


def test_few_processes(tmp_path):
    status, text, commands = ask(
        f"limits.judge_processes(Path({str(tmp_path / 'none')!r}))", "limits", before=lower(resource.RLIMIT_NPROC, 700)
    )
    assert (status, commands) == ("warning", ["ulimit -u 8192"])
    assert text.startswith("700 processes and threads (ulimit -u)")
    (tmp_path / "pids.max").write_text("100\n")
    result = limits.judge_processes(tmp_path / "pids.max")
    assert (result.status, result.remedies[0].command) == ("warning", "docker run --pids-limit=-1")


def test_little_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100000000 kB\nMemFree: 5 kB\nMemAvailable:   90000000 kB\n")
    assert limits.judge_memory(meminfo, tmp_path).status == "ok"
    (tmp_path / "memory.max").write_text(f"{10 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{(10 << 30) - (100 << 20)}\n")
    result = limits.judge_memory(meminfo, tmp_path)
    assert (result.status, result.summary) == ("warning", "100 MiB of 10 GiB of host memory are available")
    assert limits.judge_memory(tmp_path / "none", tmp_path).status == "not_applicable"


# Network


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
    assert "no address of this machine" in findings[0].text
    assert network._own_name("localhost", False)[0] == []
    (finding,) = network._own_name("localhost", True)[0]
    assert finding.status == "failure"
    assert "talk to themselves" in finding.text


def test_master_addr_that_does_not_resolve(scope, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-node.invalid")
    result = network.hostname(scope)
    assert result.status == "failure"
    assert "MASTER_ADDR=no-such-node.invalid does not resolve" in result.summary


def test_loopback_that_is_down():
    prefix = [*unshared("--net", "--mount"), "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("/sys of a network namespace cannot be mounted here")
    status, text, commands = ask("network.judge_interfaces(network.INTERFACES, False)", "network", prefix=prefix)
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
    result = network.judge_interfaces(tmp_path, False)
    assert result.status == status, result
    assert text in result.summary


def test_interfaces_between_nodes(tmp_path):
    interface(tmp_path, "lo", "0x9")
    interface(tmp_path, "docker0")
    alone = network.judge_interfaces(tmp_path, True)
    assert (alone.status, alone.summary) == ("failure", "no interface leads to another machine")
    interface(tmp_path, "eth0")
    assert network.judge_interfaces(tmp_path, True).status == "ok"
    interface(tmp_path, "eth1", mtu="9000")
    several = network.judge_interfaces(tmp_path, True)
    assert several.status == "warning"
    assert several.remedies[0].command == "export NCCL_SOCKET_IFNAME==eth0 GLOO_SOCKET_IFNAME=eth0"
    assert several.common == {"MTU of eth0": "1500", "MTU of eth1": "9000"}


def test_an_interface_that_breaks_packets(tmp_path):
    interface(tmp_path, "eth0", statistics__rx_packets=1_000_000, statistics__rx_errors=5000)
    result = network.judge_interfaces(tmp_path, False)
    assert (result.status, result.summary) == ("warning", "eth0: 5,000 broken packets of 1,000,000 (rx)")


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        named = network.ports(Scope(tmp_path, port=port))
        assert named.status == "failure"
        assert named.summary == f"port {port} that you named cannot be listened on: Address already in use"
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
    assert (result.status, result.summary) == ("failure", "MASTER_PORT=70000 is no port (1 to 65535)")


# Disk


def test_a_disk_with_room(tmp_path):
    result = disk.space(Scope(tmp_path / "runs" / "not" / "yet"))
    assert str(tmp_path) in result.summary or result.status != "ok"
    assert result.measures["folder"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path):
    with tiny(tmp_path / "disk", "size=1m") as folder:
        (folder / "data").write_bytes(bytes(1 << 20))
        result = disk.space(Scope(folder))
        flush = disk.fsync(Scope(folder))
    assert result.status == "failure"
    assert result.summary == f"{folder} cannot be written: No space left on device (0 bytes free)"
    assert result.measures["filesystem"] == "tmpfs"
    assert flush.status == "not_applicable"


def test_a_disk_that_is_nearly_full_or_out_of_files(tmp_path):
    with tiny(tmp_path / "small", "size=2g") as folder:
        small = disk.space(Scope(folder))
    assert small.status == "warning"
    assert "2 GiB free of 2 GiB" in small.summary
    with tiny(tmp_path / "files", "size=1g,nr_inodes=50") as folder:
        files = disk.space(Scope(folder))
    assert any("files more can be made" in text for text in (files.summary, *files.details))


def test_a_read_only_disk(tmp_path):
    with tiny(tmp_path / "disk", "size=8m,ro") as folder:
        result = disk.space(Scope(folder))
    assert result.status == "failure"
    assert "Read-only file system" in result.summary


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom dtk.doctor import disk\nfrom dtk.doctor.scope import Scope\n"
        "os.setgid(65534)\nos.setuid(65534)\nprint(disk.trial(Path(sys.argv[1]), disk.BLOCK_BYTES))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, closed],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "Permission denied", done.stderr


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "runs").write_text("")
    result = disk.space(Scope(tmp_path / "runs"))
    assert result.status == "failure"
    assert "is a file" in result.summary
    assert disk.fsync(Scope(tmp_path / "runs")).status == "not_applicable"


def test_a_disk_that_flushes_slowly(tmp_path):
    library = shim.build(tmp_path, "slow", shim.SLOW_FSYNC)
    call = f"disk.fsync(Scope(Path({str(tmp_path)!r})))"
    began = time.monotonic()
    status, text, commands = ask(call, "disk", LD_PRELOAD=str(library))
    assert time.monotonic() - began > 0.9, "the shim was there"
    assert status == "warning"
    assert text.startswith("slow: 1 MiB is safe after 15")
    assert "runs_folder=" in commands[0]
