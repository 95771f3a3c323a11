"""Functions in C that a host may block in, by their names in Python and in native stacks. Data only.

Sources: CPython's modules (posixmodule.c, fcntlmodule.c, socketmodule.c, _queuemodule.c), glibc's symbols.
"""

import re
from typing import Literal

Kind = Literal["lock", "file I/O", "process", "network", "sleep", "device"]
Blocks = tuple[Kind, str]
"""What a call may block in, and how that is said: `("lock", "waiting for a lock")`."""

LOCK: Blocks = ("lock", "waiting for a lock")
QUEUE: Blocks = ("lock", "waiting for a queue")
OPEN: Blocks = ("file I/O", "opening a file")
READ: Blocks = ("file I/O", "reading a file or a pipe")
WRITE: Blocks = ("file I/O", "writing to a file or a pipe")
LOOK_UP: Blocks = ("file I/O", "looking something up in a file system")
SOCKET: Blocks = ("network", "waiting for a socket")
CHILD: Blocks = ("process", "waiting for a process to end")
SLEEP: Blocks = ("sleep", "sleeping")
DEVICE: Blocks = ("device", "waiting for the device")

_LOOK_UP = (
    "access", "chmod", "link", "listdir", "lstat", "mkdir", "readlink", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "statvfs", "symlink", "truncate", "unlink", "utime",
)  # fmt: skip
CALLS: dict[str, Blocks] = {
    **dict.fromkeys(("fcntl.flock", "fcntl.lockf", "os.lockf"), LOCK),
    **dict.fromkeys(("open", "io.open", "os.open"), OPEN),
    **dict.fromkeys(("os.read", "os.pread", "os.readv", "os.sendfile"), READ),
    **dict.fromkeys(("os.write", "os.pwrite", "os.fsync", "os.fdatasync", "os.sync"), WRITE),
    **dict.fromkeys((f"os.{name}" for name in _LOOK_UP), LOOK_UP),
    **dict.fromkeys(("os.wait", "os.waitpid", "os.waitid", "os.wait3", "os.wait4"), CHILD),
    "input": ("file I/O", "waiting for input"),
    "time.sleep": SLEEP,
}
METHODS: dict[str, dict[str, Blocks]] = {
    "lock": dict.fromkeys(("acquire", ""), LOCK),
    "queue": {"get": QUEUE},
    "file": {
        **dict.fromkeys(("read", "readline", "readlines", "readinto", "read1", ""), READ),
        **dict.fromkeys(("write", "writelines", "flush", "close"), WRITE),
    },
    "socket": dict.fromkeys(("accept", "connect", "recv", "recv_into", "recvfrom", "send", "sendall"), SOCKET),
}
"""Kind of object -> method in C, or `""` for entering or iterating it."""
MAKERS = {
    **dict.fromkeys(
        (
            "threading.Lock", "threading.RLock", "_thread.allocate_lock", "multiprocessing.Lock",
            "multiprocessing.RLock", "multiprocessing.Semaphore", "multiprocessing.BoundedSemaphore",
        ),
        "lock",
    ),
    "queue.SimpleQueue": "queue",
    **dict.fromkeys(("open", "io.open", "os.fdopen"), "file"),
    "socket.socket": "socket",
}  # fmt: skip
"""What makes an object -> its kind."""
QUICK = frozenset(
    (
        "abs", "bool", "bytes", "dict", "enumerate", "float", "format", "getattr", "hasattr", "int", "isinstance",
        "len", "list", "max", "min", "range", "repr", "round", "set", "sorted", "str", "sum", "tuple", "type", "zip",
    )
)  # fmt: skip
"""Builtins that block in nothing."""
QUICK_METHODS = frozenset(
    ("append", "decode", "encode", "endswith", "format", "items", "join", "keys", "split", "startswith", "strip")
)
NATIVE: tuple[tuple[re.Pattern[str], Blocks], ...] = (
    (re.compile(r"(?:cu|cuda|hip)(?:Stream|Event|Device|Ctx)Synchronize|cu(?:da)?Memcpy(?:DtoH)?(?:_v2)?$"), DEVICE),
    (re.compile(r"_queue_SimpleQueue_get"), QUEUE),
    (re.compile(r"(?:fcntl_)?(?:flock|lockf)(?:_impl)?$"), LOCK),
    (re.compile(r"lock_PyThread_acquire_lock|rlock_acquire|(?:_multiprocessing_)?SemLock_(?:acquire|__enter__)"), LOCK),
    (re.compile(r"sock_(?:recv|accept|connect|send|call)|recv(?:from|msg)?$|accept4?$|connect$"), SOCKET),
    (re.compile(r"(?:os_)?wait(?:pid|id|3|4)(?:_impl)?$"), CHILD),
    (re.compile(r"time_sleep$|(?:clock_)?nanosleep$"), SLEEP),
    (re.compile(r"(?:os_)?open(?:at)?(?:64)?(?:_impl)?$"), OPEN),
    (re.compile(r"(?:os_)?p?read(?:v|64)?(?:_impl)?$"), READ),
    (re.compile(r"(?:os_)?(?:p?write(?:v|64)?|f(?:data)?sync)(?:_impl)?$"), WRITE),
    (re.compile(r"(?:os_)?(?:[lf]?stat(?:at)?(?:64)?|statx|newfstatat|getdents(?:64)?|unlink|rename|mkdir)$"), LOOK_UP),
)
"""Functions as `py-spy dump --native` names them: CPython's before those of libc that they call."""


KERNEL: tuple[tuple[re.Pattern[str], Blocks], ...] = (
    (re.compile(r"flock|posix_lock|locks_lock|fcntl_setlk"), LOCK),
    (re.compile(r"pipe_read|n_tty_read|wait_woken"), READ),
    (re.compile(r"fifo_open|nfs|rpc_wait|fuse|folio_wait|io_schedule|lustre|ceph"), OPEN),
    (re.compile(r"hrtimer_nanosleep"), SLEEP),
    (re.compile(r"^do_wait|^kernel_wait4"), CHILD),
)
"""Functions that a thread sleeps in, as /proc/PID/wchan names them (Linux 5, 6). A futex or a poll may be anything."""


def kernel(wchan: str) -> Blocks | None:
    """Return what a function of the kernel shows that a thread waits for, or None if it may be anything."""
    return next((blocks for pattern, blocks in KERNEL if pattern.search(wchan)), None)


def native(function: str) -> Blocks | None:
    """Return what a C function may block in, or None if it is not a known one."""
    name = function.removesuffix("_nocancel")
    if name.startswith("__"):
        name = name.removeprefix("__GI_").lstrip("_").removeprefix("libc_")
    return next((blocks for pattern, blocks in NATIVE if pattern.match(name)), None)
