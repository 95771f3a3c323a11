"""Starts dtk, and the ranks that it starts, as forks of this process, which has imported torch already.

A forked program is a process of its own, child of the one that started it, with its own arguments, environment, folder
and output; a signal ends it as any other. What depends on imports themselves is not seen in it.
"""

import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.warm_python import IMPORTED  # noqa: E402

_MOST_OPEN = 4096
_exec: Callable[..., None] = subprocess.Popen._execute_child


def warm() -> None:
    """Import what dtk's processes import, and fork wherever this process or a fork starts `python -m MODULE`."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    subprocess.Popen._execute_child = _execute_child


def _execute_child(
    self: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Sequence[int], cwd: Any,
    env: Any, startupinfo: Any, creationflags: Any, shell: bool, p2cread: int, p2cwrite: int, c2pread: int,
    c2pwrite: int, errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int,
    start_new_session: bool, *more: Any,
) -> None:  # fmt: skip
    """Stand in for the method of this name of `subprocess.Popen`, which knows all the rest."""
    words = [] if shell or isinstance(args, str | bytes) else [os.fspath(word) for word in args]
    flags = words.index("-m") if "-m" in words else 0
    if not words or words[0] != sys.executable or words[1:flags] not in ([], ["-u"]) or not flags:
        _exec(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
            start_new_session, *more,
        )  # fmt: skip
        return
    sys.stdout.flush()
    sys.stderr.flush()
    self.pid = os.fork()
    if not self.pid:
        try:
            if start_new_session:
                os.setsid()
            for source, target in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
                if source != -1:
                    os.dup2(source, target)
            if preexec_fn:
                preexec_fn()
            _become(words[flags + 1 :], cwd, os.environ if env is None else env, pass_fds)
        finally:
            os._exit(1)
    self._child_created = True
    devnull = getattr(self, "_devnull", None)
    for ours, other in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
        if ours != -1 and other != -1 and ours != devnull:
            os.close(ours)
    if devnull is not None:
        os.close(devnull)
    self._closed_child_pipe_fds = True


def _become(words: list[str], cwd: Any, environment: Any, kept: Sequence[int]) -> NoReturn:
    """Run a module as `python -m` does, and end as it does, but for taking the imported modules apart."""
    opened = 3
    for handle in sorted(kept):
        os.closerange(opened, handle)
        opened = handle + 1
    os.closerange(opened, _MOST_OPEN)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_IGN and signal.getsignal(number) is not None:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if cwd is not None:
        os.chdir(cwd)
    given = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    os.environ.clear()
    os.environ.update(given)
    tempfile.tempdir = None  # TMPDIR is another one.
    sys.argv, code = ["-m", *words[1:]], 0
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
