"""Runs `python -m MODULE` without its imports: forked from a process that has imported torch, Hydra and dtk already.

Importing them takes seconds of a core, more than most of what the tests then look at. A forked program is a process of
its own, with its own arguments, environment, working directory and output, and ends as one that was started. What
depends on imports themselves (start-up, PYTHONPATH, variables that torch reads when it is imported) is tested with
`subprocess`. One such process for each worker of pytest; it ends with the worker.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "dtk.config.hydra_compose",
    "dtk.data.build",
    "dtk.launch.console",
    "dtk.launch.prepare",
    "dtk.launch.local",
    "dtk.start.point",
    "dtk.plan.job",
    "dtk.record.manifest",
    "dtk.train.assemble",
)
"""A module that is not here is imported by the program itself, as ever. Never what is run by `-m`."""
IMPORT_S = 120.0


def run_module(
    arguments: list[str], environment: dict[str, str], cwd: Path, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m ARGUMENTS` to its end.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it was killed.
    """
    (process,) = run_modules([(arguments, environment)], cwd, timeout_s)
    return process


def run_modules(
    programs: list[tuple[list[str], dict[str, str]]], cwd: Path, timeout_s: float
) -> "list[subprocess.CompletedProcess[str]]":
    """Run several programs at the same time, each with its arguments and its environment.

    Raises:
        subprocess.TimeoutExpired: one did not end in time; all were killed.
    """
    started = [Program(arguments, environment, cwd) for arguments, environment in programs]
    try:
        with ThreadPoolExecutor(len(started)) as pool:
            texts = list(pool.map(lambda program: program.communicate(timeout_s), started))
    finally:
        for program in started:
            program.kill()
    return [
        subprocess.CompletedProcess(program.args, program.wait(), *text)
        for program, text in zip(started, texts, strict=True)
    ]


class Program:
    """A forked program under way, with what `subprocess.Popen` offers of it; its output comes through pipes."""

    def __init__(self, arguments: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.args = arguments
        self.returncode: int | None = None
        (out, out_end), (error, error_end) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out, encoding="utf-8"), os.fdopen(error, encoding="utf-8")
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(_server())
        self._connection.settimeout(IMPORT_S)
        with tempfile.TemporaryFile() as request:  # An environment may be longer than a message.
            request.write(json.dumps([arguments, environment, str(cwd)]).encode())
            request.flush()
            socket.send_fds(self._connection, [b"run"], [request.fileno(), out_end, error_end])
        os.close(out_end)
        os.close(error_end)
        self.pid = int(self._connection.recv(64))

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(1e-6)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(int(self._connection.recv(64)))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read its output to the end and wait for it; return standard output and standard error.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        ends_s = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(number: int) -> None:
            for line in (self.stdout, self.stderr)[number]:
                texts[number] += line

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in (0, 1)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if ends_s is None else max(0.0, ends_s - time.monotonic()))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *texts)
        self.wait(None if ends_s is None else max(1e-6, ends_s - time.monotonic()))
        self.stdout.close()
        self.stderr.close()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> str:
    """Address of this worker's process, which is started by the first call."""
    folder = tempfile.mkdtemp(prefix="dtk-warm-")
    address = f"{folder}/socket"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.kill()
        process.wait()
        Path(address).unlink(missing_ok=True)
        Path(folder).rmdir()

    atexit.register(end)
    return address


def _serve(address: str) -> tuple[list[str], dict[str, str], str]:
    """Fork for every request; returns in the forked programs only, with what each of them is to run."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        if sys.stdin.fileno() in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)  # The worker has ended.
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, files, _, _ = socket.recv_fds(connection, 64, 3)
        pid = os.fork()
        if pid:
            _report(connection, pid)
        connection.close()
        with os.fdopen(files[0], "rb") as request:
            request.seek(0)
            arguments, environment, cwd = json.load(request)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (files[1], 1), (files[2], 2)):
            os.dup2(source, target)
            os.close(source)
        return arguments, environment, cwd


def _report(connection: socket.socket, pid: int) -> NoReturn:
    """Tell the number of the program, and its status when it has ended."""
    connection.send(b"%d" % pid)
    connection.send(b"%d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _run(module: str) -> NoReturn:
    """Run the module and end as Python does, but for taking the imported modules apart, which copies their memory."""
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = 1
        traceback.print_exc()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _arguments, _environment, _cwd = _serve(sys.argv[1])
    os.chdir(_cwd)
    os.environ.clear()
    os.environ.update(_environment)
    sys.path[0] = _cwd
    sys.argv = ["-m", *_arguments[1:]]
    _run(_arguments[0])
