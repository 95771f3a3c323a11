"""First on PYTHONPATH under `dtk watch`: loads `dtk.record.watched_rank` once a process group is created. Runs in the
script's own Python, of any version; a process without torch.distributed pays one comparison per import.
"""
# Imports are kept to a minimum (no pathlib), and old Python versions must be able to parse this file.
# ruff: noqa: PTH100, PTH103, PTH105, PTH112, PTH118, PTH120, PTH123, PTH208, UP031, UP037

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
"""Folder with the packages dtk and diagnostics; not added to the script's path, where it may hide its packages."""
EVERY_S = 1.0  # Chosen: far below the timeout for ranks that do not join; each report is one small file.
TRANSFER_BYTES = 1 << 20  # Chosen: bytes read or written in that time; polling moves less, as in dtk.record.activity.
CHILD_WORKS = 0.05  # Chosen: of a core, between a child that polls (0.01) and a compiler on a busy machine (0.1).
BUSY_SHARE = 0.5  # Chosen: of that interval on a core; a process that polls needs a few percent.
FRAMES = 24  # Chosen: torch's own frames and some of the user's.
AWAITED = "torch.distributed.distributed_c10d"
OLDEST = (3, 11)  # As `requires-python` in pyproject.toml.


class Awaiting:
    """Meta path finder that delegates to the others and runs a step after the awaited module was executed."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of the awaited module; None for all others."""
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec: "Any" = find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: "Any") -> None:
                del loader.exec_module
                run(module)
                wrap(module)

            loader.exec_module = exec_module
        return spec


class Own:
    """Meta path finder for dtk's two packages while they are being loaded."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of one of the packages; None for all other modules."""
        if name not in ("dtk", "diagnostics"):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [ROOT])


class Start:
    """Writes once per second to a file how far this rank is on its way to its process group, and where.

    `diagnostics.evidence.readers.start` reads it: `started`, then `meets` within init_process_group, then `met`.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.path = "%s/start/attempt_%d/rank_%05d.json" % (os.environ["DTK_WATCH_FOLDER"], attempt, rank)
        self.about = {"dtk_start": 1, "rank": rank, "world_size": world_size, "attempt": attempt, "pid": os.getpid()}
        self.state = "started"
        self.stopped = False
        self.since_s = self.worked_s = 0.0
        self.last: "Any" = None

    def begin(self, state: str, first: bool) -> bool:
        """Claim the file, with `first` only if no other process of this rank has it, and keep it up to date."""
        import threading
        import time

        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            os.close(os.open(self.path, os.O_CREAT | (os.O_EXCL if first else 0), 0o644))
        except FileExistsError:
            return False
        self.state, self.since_s, self.worked_s = state, time.time(), time.time()
        self.write()
        threading.Thread(target=self.run, name="dtk-start", daemon=True).start()
        return True

    def run(self) -> None:
        """Report until the group is created, or another process of this rank takes over."""
        import time

        while not self.stopped and self.about["pid"] == os.getpid():
            time.sleep(EVERY_S)
            try:
                with open(self.path) as file:
                    if '"pid": %d,' % os.getpid() not in file.read():
                        return
                if not self.stopped:
                    self.write()
            except Exception:
                return

    def enter(self, state: str) -> None:
        """Enter the next state."""
        import time

        self.state, self.since_s = state, time.time()
        self.stopped = state == "met"
        self.write()

    def write(self) -> None:
        """Write the place of the main thread, and since when it has not moved."""
        import json
        import socket
        import threading
        import time

        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        frames: "list[Any]" = []
        while frame is not None and len(frames) < FRAMES:
            code = frame.f_code
            if threading.current_thread() is threading.main_thread() and code.co_filename == __file__:
                frame = frame.f_back
                continue
            frames.append([code.co_filename, frame.f_lineno, code.co_name])
            frame = frame.f_back
        now_s, children = time.time(), list(_descendants(os.getpid()))
        used = (now_s, _ran_s(), _transferred(children), sum(map(_child_s, children)))
        last, (at_s, ran_s, moved, children_s) = self.last or (None, (0.0, 0.0, 0, 0.0))
        busy = used[1] - ran_s > BUSY_SHARE * (now_s - at_s) or used[3] - children_s > CHILD_WORKS * (now_s - at_s)
        if last != frames or busy or used[2] - moved > TRANSFER_BYTES:
            self.worked_s = now_s
        self.last = (frames, used)
        record = dict(self.about, state=self.state, host=socket.gethostname(), since_s=self.since_s)
        record.update(alive_s=now_s, worked_s=self.worked_s, frames=frames)
        temporary = "%s.%d.tmp" % (self.path, threading.get_ident())
        with open(temporary, "w") as file:
            json.dump(record, file)
        os.replace(temporary, self.path)


def _ran_s() -> float:
    """Return the seconds in which the main thread ran or waited for a core; if unknown, those in which it ran."""
    try:
        with open("/proc/self/task/%d/schedstat" % os.getpid()) as file:
            return sum(map(int, file.read().split()[:2])) / 1e9
    except (OSError, ValueError):
        import time

        return time.process_time()


def _transferred(children: "list[int]") -> int:
    """Return the bytes that this process and its children read and wrote, as far as known."""
    total = 0
    for pid in [os.getpid(), *children]:
        try:
            with open("/proc/%d/io" % pid) as file:
                total += sum(int(line.split()[1]) for line in file.readlines()[:2])
        except (OSError, ValueError, IndexError):
            pass
    return total


def _descendants(pid: int) -> "Iterator[int]":
    """Yield the processes that a process started, such as a compiler, and those that they started."""
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return
    for task in tasks:
        try:
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                children = [int(child) for child in file.read().split()]
        except (OSError, ValueError):
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def _child_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have exited; 0 if unknown."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def started(rank: "Any", world_size: "Any", state: str) -> "Any":
    """Report the start of this rank and return its file, or None if that is not possible. Never raises."""
    try:
        if "DTK_WATCH_FOLDER" in os.environ and int(rank) >= 0 and int(world_size) > 1:
            start = Start(int(rank), int(world_size))
            if start.begin(state, first=state == "started"):
                return start
    except Exception as problem:
        sys.stderr.write("dtk watch: cannot report the start of a rank: %s: %s\n" % (type(problem).__name__, problem))
    return None


def wrap(c10d: "Any") -> None:
    """Start and stop the watch together with the process group."""
    import functools

    init, destroy = c10d.init_process_group, c10d.destroy_process_group
    attached: "list[Any]" = []

    @functools.wraps(init)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        start = BEGUN.pop() if BEGUN else None
        try:
            if attached or "dtk.record.recorder" in sys.modules:
                start = None
            elif start is not None:
                start.enter("meets")
            else:
                rank, world_size = kwargs.get("rank", -1), kwargs.get("world_size", -1)
                own = rank is not None and rank >= 0
                given = (rank, world_size) if own else [os.environ.get(name, -1) for name in ("RANK", "WORLD_SIZE")]
                start = started(given[0], given[1], "meets")
        except Exception:
            start = None
        try:
            result = init(*args, **kwargs)
        except BaseException:
            if start is not None:
                start.stopped = True
            raise
        if start is not None:
            try:
                start.enter("met")
            except OSError:  # The disk is full.
                start.stopped = True
        try:
            if not attached and "dtk.record.recorder" not in sys.modules:  # A dtk run watches itself.
                attached.append(load().attach())
        except Exception as problem:
            sys.stderr.write("dtk watch: a rank is not watched: %s: %s\n" % (type(problem).__name__, problem))
        return result

    @functools.wraps(destroy)
    def destroy_process_group(group: "Any" = None) -> "Any":
        if attached and group in (None, c10d.GroupMember.WORLD):
            attached.pop().detach()
        return destroy(group)

    c10d.init_process_group, c10d.destroy_process_group = init_process_group, destroy_process_group


def load() -> "Any":
    """Return the module `dtk.record.watched_rank`.

    `diagnostics` is removed from sys.modules again, as the script may have a package of that name. RuntimeError if the
    script's Python is too old, or it has a module named dtk.
    """
    if sys.version_info < OLDEST:
        raise RuntimeError("its Python is older than %d.%d" % OLDEST)
    import importlib
    from importlib.machinery import PathFinder

    other = PathFinder.find_spec("dtk")
    if other is not None and not os.path.isdir(os.path.join(os.path.dirname(other.origin or ""), "record")):
        raise RuntimeError("the script has a module named dtk: %s" % other.origin)
    finder: "Any" = Own()
    modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "diagnostics"}
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("dtk.record.watched_rank")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "diagnostics"]:
            del sys.modules[name]
        sys.modules.update(modules)


def chain() -> None:
    """Run the sitecustomize that this one hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    hidden = sys.modules.pop("sitecustomize")
    try:
        importer = __import__
        importer("sitecustomize")
    except ModuleNotFoundError as problem:
        if problem.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", hidden)


BEGUN: "list[Any]" = []  # The start of this rank, until it reaches init_process_group.

if "DTK_WATCH_FOLDER" in os.environ:
    if "TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_RANK" in os.environ:
        BEGUN += filter(None, [started(os.environ.get("RANK", -1), os.environ.get("WORLD_SIZE", -1), "started")])
    sys.meta_path.insert(0, Awaiting())
if __name__ == "sitecustomize":
    chain()
