"""Processes with a rank's environment, real ones: who is a rank, who only its child, who its launcher."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtk.attach import processes
from tests.patience import stretched

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
TREE = """\
import os, subprocess, sys, time
child = [sys.executable, "-c", "import subprocess, sys, time; "
         "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(flush=True); time.sleep(60)"]
for rank in sys.argv[1].split():
    place = {"RANK": rank, "WORLD_SIZE": "3", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "h",
             "MASTER_PORT": sys.argv[2]}
    one = subprocess.Popen(child, env={**os.environ, **place}, stdout=subprocess.PIPE)
    one.stdout.readline()
    print(one.pid, flush=True)
time.sleep(60)
"""


def begun(pid: int) -> int:
    """Wait for the environment of a process and of its children: after execve, it is empty for a moment."""
    deadline_s = time.monotonic() + stretched(10)
    while not Path(f"/proc/{pid}/environ").read_bytes() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        begun(int(child))
    return pid


@pytest.fixture
def job() -> Iterator[tuple[int, list[int]]]:
    """A launcher that has a rank of its own kind (as in Kubernetes), ranks 0 and 2 of three, each with a child."""
    own = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "11"}
    port = str(os.getpid())  # Another process of pytest may have such a job at the same time.
    argv = [sys.executable, "-c", TREE, "0 2", port]
    process = subprocess.Popen(
        argv, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    ranks = [begun(int(process.stdout.readline())) for _ in range(2)]
    yield process.pid, ranks
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_ranks_are_found_without_their_children_and_launcher(job: tuple[int, list[int]]) -> None:
    launcher, pids = job
    (ranks,) = processes.find([launcher])
    assert {rank: value.pid for rank, value in ranks.items()} == {0: pids[0], 2: pids[1]}
    assert [item.keys() for item in processes.find([pids[1]])] == [{0, 2}], "a rank stands for its whole job"
    children = Path(f"/proc/{pids[1]}/task/{pids[1]}/children").read_text().split()
    assert [item.keys() for item in processes.find([int(children[0])])] == [{0, 2}], "and so does its child"
    assert processes.missing(ranks) == [1]
    assert any(ranks[0].pid == item[0].pid for item in processes.find() if 0 in item)


FIRST = """\
import os, subprocess, sys, time
os.environ.update(WORLD_SIZE="6", NODE_RANK="1", LOCAL_RANK="0", MASTER_PORT="33")
loader = "import time; time.sleep(60)"
other = "import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(60)"
for local in sys.argv[1].split():
    child = [sys.executable, "-c", other, loader]
    print(subprocess.Popen(child, env={**os.environ, "LOCAL_RANK": local}).pid, flush=True)
subprocess.Popen([sys.executable, "-c", loader])
time.sleep(60)
"""


def test_ranks_that_the_first_one_started_are_found_with_it() -> None:
    """As Lightning starts them: without RANK, and the first rank has the variables only since it runs."""
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "SLURM_PROCID")}
    argv = [sys.executable, "-c", FIRST, "1 2"]
    process = subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    others = [begun(int(process.stdout.readline())) for _ in range(2)]
    try:
        for requests in (process.pid, others[1]):
            (ranks,) = processes.find([requests])
            assert {rank: item.pid for rank, item in ranks.items()} == {3: process.pid, 4: others[0], 5: others[1]}
            assert {item.world_size for item in ranks.values()} == {6}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_process_that_sleeps_makes_no_switch_and_one_that_is_stopped_says_so(job: tuple[int, list[int]]) -> None:
    pid = job[1][0]
    time.sleep(0.3)
    item, code = processes.moment(pid)
    time.sleep(0.5)
    other, _ = processes.moment(pid)
    assert (item.state, code) == ("S", None) and item.switches == other.switches and item.cpu_s == other.cpu_s
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.1)
    assert processes.moment(pid)[0].state == "T"


def test_one_that_ended_gives_its_exit_code_until_it_is_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    moment, code = processes.moment(process.pid)
    assert (moment.state, code) == ("Z", 7)
    process.wait()
    assert processes.moment(process.pid)[0].state == ""


@pytest.mark.parametrize(("names", "count"), [("", 0), ("gloo_run gloo_run", 1), ("gloo_run gloo_run nccl_watch", 2)])
def test_process_groups_are_counted_by_the_threads_that_torch_names(names: str, count: int) -> None:
    threads = """
import sys, threading, time
def own(name):
    open("/proc/thread-self/comm", "w").write(name)
    print(flush=True)
    time.sleep(60)
for name in sys.argv[1:]:
    threading.Thread(target=own, args=(name,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""
    comms = [{"gloo_run": "pt_gloo_runloop", "nccl_watch": "pt_nccl_watchdg"}[name] for name in names.split()]
    with subprocess.Popen([sys.executable, "-c", threads, *comms], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(len(comms) + 1):
            process.stdout.readline()
        assert processes.groups(process.pid) == count
        process.kill()


def test_memory_and_sockets_in_short(job: tuple[int, list[int]]) -> None:
    about = processes.about(job[1][0])
    assert str(about["VmRSS"]).endswith("kB") and about["sockets"] == 0


def test_places_that_no_launcher_gives_are_none() -> None:
    places = (
        {"RANK": "0", "WORLD_SIZE": "9" * 5000},
        {"RANK": "1" + "0" * 12, "WORLD_SIZE": "1" + "0" * 13},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "\u0661", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1" + "0" * 12},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    )
    argv = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    begun = [
        subprocess.Popen(argv, env=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for place in places
    ]
    for process in begun:
        assert process.stdout is not None and process.stdout.readline() == "\n"
    result = [processes.find([process.pid]) for process in begun]
    assert result[:4] == [[]] * 4
    assert [processes.missing(jobs[0]) for jobs in result[4:]] == [[], []]
    for process in begun:
        process.communicate("\n", timeout=stretched(20))


def test_the_process_that_holds_a_file_lock_is_found(tmp_path: Path) -> None:
    take = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); print(flush=True); fcntl.flock(f, fcntl.LOCK_EX); "
    argv = [sys.executable, "-c", take + "print(flush=True); time.sleep(60)", str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert [holder.stdout.readline() for _ in range(2)] == [b"\n", b"\n"]  # It has the lock.
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as waiter:
            ends_s = time.monotonic() + 30
            while (result := processes.lock_holder(waiter.pid)) is None and time.monotonic() < ends_s:
                time.sleep(0.05)
            waiter.kill()
        assert (result, processes.lock_holder(holder.pid)) == (holder.pid, None)
        holder.kill()


def test_a_file_that_is_closed_meanwhile_hides_no_socket() -> None:
    """Of this process, that is the list of its files itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in processes.listening([os.getpid()])


CONNECTS = """\
import socket, sys
kept = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
print(flush=True)
input()
"""


def test_connections_between_ranks_are_counted_without_those_to_the_store() -> None:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [str(server.getsockname()[1]) for server in servers]
    store, environment = ports[0], {"MASTER_PORT": ports[0]}
    argv = [sys.executable, "-S", "-c", CONNECTS, store, *ports[1:]]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None and peer.stdout.readline() == b"\n"
        accepted = [server.accept()[0] for server in servers]
        pids = {0: os.getpid(), 1: peer.pid, 2: 1}
        ranks = {n: processes.RankProcess(pid, n, 3, ("job",), "", environment) for n, pid in pids.items()}
        counts = processes.connections(ranks)
        peer.communicate(b"\n", timeout=stretched(20))
    assert counts == {0: {1: 2}, 1: {0: 2}, 2: {}}
    for connection in (*servers, *accepted):
        connection.close()
