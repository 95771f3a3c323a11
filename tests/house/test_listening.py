"""Nothing of dtk can be reached from outside: every socket that a command's processes listen on is on loopback."""

import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from dtk.commands.main import _COMMANDS
from tests.patience import stretched
from tests.unit.sweep.files import GRID, write

ROOT = Path(__file__).resolve().parents[2]
JOB = ("model=gpt2_tiny", "train.steps=3", "checkpoint=off")
SMALL = (*JOB, "launcher.nproc=2")
COMMANDS = {
    "run": ("run", "strategy=ddp", *SMALL),
    "run with restarts": ("run", "strategy=fsdp", "launcher.max_restarts=1", *SMALL),
    "bench": ("bench", "comm", "--op=all_reduce", "--max-size=4K", "--seconds=2", "--repeats=2", "launcher.nproc=2"),
    "doctor": ("doctor", "--only", "collectives_gloo"),
    "calibrate": ("plan", "--calibrate"),
    "preflight": ("preflight", "strategy=ddp", "model=gpt2_tiny", "launcher.world_size=2"),
    "watch": ("watch", "--", sys.executable, "spawn.py"),
    "ui": ("ui", "--no-open"),
}
EXTENDED = {
    "run preflight=on": ("run", "preflight=on", "strategy=fsdp", *SMALL),
    "run -m": ("run", "-m", "strategy=ddp,zero1", *SMALL),
    "run tracker=tensorboard": ("run", "tracker=tensorboard", "strategy=ddp", *SMALL),
    "run tracker=wandb": ("run", "tracker=wandb", "tracker.mode=offline", "strategy=ddp", *SMALL),
    "run export": ("run", "strategy=fsdp", "model=gpt2_tiny", "train.steps=2", "launcher.nproc=2",
                   "checkpoint.export=true"),
    "bench --ab": ("bench", "comm", "--op=all_reduce", "--max-size=4K", "--repeats=1", "--ab", "auto", "cpu_gloo",
                   "launcher.nproc=2"),
    "doctor, all of it": ("doctor",),
    "plan by simulation": ("plan", "strategy=fsdp", "model=gpt2_tiny", "launcher.world_size=2", "--engine=both"),
    "preflight --script": ("preflight", "--script", "script.py", "--world-size=2"),
    "tune": ("tune", "bucket", "strategy=ddp", "--values=5,25", "--repeats=1", "--steps=2", *SMALL),
    "sweep": ("sweep", "sweep.yaml", "launcher.nproc=2"),
    "rerun": ("rerun", "last", "fault=none", "train.steps=2"),
    "diagnose": ("diagnose", "last", "--verify-fix"),
    "demo": ("demo", "--no-open"),
    "sync": ("sync", "last", "--tracker=wandb", "--offline"),
    "attach": ("attach", ""),
}  # fmt: skip
OF_A_RUN = ("rerun", "diagnose", "sync")
"""These need a run that has failed."""
SILENT = ("simulation", "preflight", "sync", "attach")
"""One process that opens no socket at all; W&B's talks to its core by a Unix socket in some versions."""
WITHOUT_PROCESSES = {
    "strategies": ["strategies"],
    "ls": ["ls"], "show": ["show", "last", "--why", "train.steps"], "compare": ["compare", "*"],
    "nccl": ["nccl", "list"], "plan": ["plan", "model=gpt2_tiny", "--engine=closed_form"],
    "rm": ["rm", "last", "--yes"], "explain": ["explain", "seed"],
    "new": ["new", "lab"], "trace": ["trace", "last"], "completion": ["completion", "bash", "dtk run "],
}  # fmt: skip
"""They start nothing and bind nothing, so a look into the interpreter shows it."""
SCRIPT = """\
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, ranks=2):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(8))
    open("met", "w").close()
    time.sleep(float(os.environ.get("SECONDS", "2")))
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
RANKS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(8))
"""
AUDIT = """\
import sys
from dtk.commands.main import main
FORBIDDEN = ("socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec")
def hook(event, arguments):
    if event in FORBIDDEN and "git" not in str(arguments):
        print("AUDIT", event, arguments, file=sys.stderr)
sys.addaudithook(hook)
sys.exit(main(sys.argv[1:]))
"""


class Watched:
    """The processes that carry a mark in their environment: also those that left the tree of the command."""

    def __init__(self) -> None:
        self.mark = f"DTK_TEST_LISTENING_{secrets.token_hex(8)}"
        self.ours: dict[int, bool] = {}
        self.seen: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Note the addresses and ports that they listen on."""
        for process in psutil.process_iter():
            try:
                if not self.ours.get(process.pid):  # A process that has only been forked has its parent's for a while.
                    self.ours[process.pid] = self.mark in process.environ()
                if self.ours[process.pid]:
                    connections = process.net_connections(kind="inet")
                    self.seen |= {(c.laddr.ip, c.laddr.port) for c in connections if reachable(c)}
            except psutil.Error:
                continue


def reachable(connection: "psutil._common.pconn") -> bool:
    """Whether it waits for whoever comes: a TCP socket that listens, a UDP socket without a peer."""
    waits = connection.type == socket.SOCK_DGRAM and not connection.raddr
    return bool(connection.laddr) and (waits or connection.status == psutil.CONN_LISTEN)


def watched(words: Sequence[str], folder: Path, codes: tuple[int, ...] = (0,)) -> set[tuple[str, int]]:
    """Run a command and return what its processes listened on."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_SOCKET_IFNAME")}
    if words[0] == "watch":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # Where the script's own groups listen is the script's business.
    watching = Watched()
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), watching.mark: "1", "OMP_NUM_THREADS": "1"}
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dtk", *words], cwd=folder, env=environment, stdout=output, stderr=output
        )
        ends_s = time.monotonic() + 800
        while process.poll() is None and time.monotonic() < ends_s:
            watching.look()
            time.sleep(0.05)
            if words[0] == "ui" and watching.seen:  # It serves until somebody ends it.
                process.send_signal(signal.SIGINT)
                process.wait(stretched(20))
        process.kill()
    assert process.wait() in codes, (folder / "output.log").read_text()
    return watching.seen


@contextmanager
def a_job(folder: Path) -> Iterator[str]:
    """Run a job whose own sockets are not looked at; yields its process id once its only rank waits."""
    environment = {**os.environ, "SECONDS": "900", "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    job = psutil.Popen([sys.executable, "-c", "import spawn; spawn.train(0, 1)"], cwd=folder, env=environment)
    try:
        while job.poll() is None and not (folder / "met").exists():
            time.sleep(0.1)
        yield str(job.pid)
    finally:
        job.kill()
        job.wait()


def prepare(folder: Path) -> None:
    (folder / "spawn.py").write_text(SCRIPT)
    (folder / "script.py").write_text(RANKS)
    write(folder, {**GRID, "command": [*GRID["command"], "checkpoint=off"]})


@pytest.mark.parametrize(
    "name",
    [*COMMANDS, *(pytest.param(name, marks=[pytest.mark.extended, pytest.mark.timeout(900)]) for name in EXTENDED)],
)
def test_only_loopback_is_listened_on(name: str, tmp_path: Path) -> None:
    if ("wandb" in name or name == "sync") and find_spec("wandb") is None:
        pytest.skip("the extra wandb is not installed")
    prepare(tmp_path)
    if name in OF_A_RUN:
        watched(("run", "fault=extra_collective", "launcher.nproc=2"), tmp_path, (1,))
    with a_job(tmp_path) if name == "attach" else nullcontext("") as pid:
        words = [word or pid for word in (COMMANDS | EXTENDED)[name]]
        seen = watched(words, tmp_path, (0, 1) if name in (*OF_A_RUN, "attach") else (0,))
    assert seen or any(word in name for word in SILENT), "no socket was seen: the test looks at the wrong processes"
    open_to_all = {address for address in seen if not ipaddress.ip_address(address[0]).is_loopback}
    assert not open_to_all, (tmp_path / "output.log").read_text()


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_commands_that_read_runs_start_nothing_and_bind_nothing(tmp_path: Path) -> None:
    watched(("run", "strategy=single", *JOB), tmp_path)
    watched(("run", "strategy=single", *JOB), tmp_path)
    paths = sorted(str(path) for path in (tmp_path / "runs").iterdir() if (path / "status.json").exists())
    for words in [[n for w in words for n in (paths if w == "*" else [w])] for words in WITHOUT_PROCESSES.values()]:
        done = subprocess.run(
            [sys.executable, "-c", AUDIT, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0 and "AUDIT" not in done.stderr, (words, done.stdout, done.stderr)


def test_every_command_is_looked_at() -> None:
    named = {words[0] for words in (*COMMANDS.values(), *EXTENDED.values())} | set(WITHOUT_PROCESSES) | {"run"}
    assert set(_COMMANDS) <= named
