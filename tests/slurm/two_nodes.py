"""A Slurm of two nodes on this machine, in a folder of its own: controller, two slurmd, munge. Needs root."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
NODES = ("na", "nb")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
KillWait=60
NodeName=na NodeHostname={host} NodeAddr=127.0.0.1 Port={port_a} CPUs=2 RealMemory=500
NodeName=nb NodeHostname={host} NodeAddr=127.0.0.1 Port={port_b} CPUs=2 RealMemory=500
PartitionName=main Nodes=na,nb Default=YES MaxTime=INFINITE State=UP
"""


def absent() -> str:
    """Why there can be no such cluster here; empty when there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: apt install slurm-wlm)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs only as root"


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start it; yields the variables by which Slurm's commands find it.

    Raises:
        RuntimeError: the nodes did not come up.
    """
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    _configure(folder)
    munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
    try:
        _start(["munged", "--force", *munge, f"--seed-file={folder}/munge.seed"], environment)
        _start(["slurmctld"], environment)
        for node in NODES:
            _start(["slurmd", "-N", node], environment)
        _wait_for_nodes(environment)
        yield {"SLURM_CONF": environment["SLURM_CONF"]}
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, check=False)
        time.sleep(1)
        for pid in ("slurmd_na.pid", "slurmd_nb.pid", "slurmctld.pid", "munge.pid"):
            with suppress(OSError, ValueError):
                os.kill(int((folder / pid).read_text()), signal.SIGTERM)


def _configure(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    ports = []
    with suppress(OSError):
        probes = [socket.socket() for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        for probe in probes:
            probe.close()
    host = socket.gethostname().split(".")[0]
    text = CONF.format(folder=folder, host=host, port=ports[0], port_a=ports[1], port_b=ports[2])
    (folder / "slurm.conf").write_text(text)


def _start(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr or done.stdout}")


def _wait_for_nodes(environment: dict[str, str]) -> None:
    said = ""
    for _ in range(60):
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        if done.stdout.split() == ["idle"]:
            return
        time.sleep(0.5)
    raise RuntimeError(f"the nodes did not come up: {said}")
