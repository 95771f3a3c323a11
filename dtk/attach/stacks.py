"""Reads stacks of a running process with py-spy, which stops it for milliseconds, or reports the missing permission."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from diagnostics.evidence.calls import is_library

Frames = list[dict[str, Any]]  # Of one thread, as `py-spy dump --json` prints them, innermost first.
Manner = Literal["native", "python", "nonblocking"]
"""With native frames, without, or without stopping the process, so that a stack may be inconsistent."""
TIMEOUT_S = 12.0  # Timeout for one process; reading symbols of torch's CUDA libraries takes seconds.
_MOST_DIGITS = 9  # CPython's line numbers have 32 bits, so larger ones are invalid.
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_MAY_PTRACE = 1 << 19  # CAP_SYS_PTRACE (linux/capability.h).


@dataclass(frozen=True, slots=True)
class Dump:
    """Stacks of one process at one time."""

    text: str
    """Output of `py-spy dump` without its header."""
    call: dict[str, str] = field(default_factory=dict)
    """torch.distributed function that a thread is in, the main one first; whether its group is the default one, else
    the script's variable that holds it (`function:name`), and the peer."""
    counters: list[dict[str, Any]] = field(default_factory=list)
    """Integer variables in the script's own frames: the progress of its loops."""
    problem: str = ""


def spy() -> str | None:
    """Return the path of py-spy, or None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump(program: str, pid: int, manner: Manner) -> Dump:
    """Read the stacks of one process."""
    option = {"native": ["--native"], "nonblocking": ["--nonblocking"]}.get(manner, [])
    argv = [program, "dump", "--json", "--locals", "--full-filenames", *option, "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
        threads = json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return Dump("", problem=f"py-spy did not answer within {TIMEOUT_S:g} s")
    except (OSError, ValueError) as error:
        return Dump("", problem=f"py-spy: {error}")
    if threads is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        return Dump("", problem=lines[0].removeprefix("Error: "))
    paths = [thread["frames"] for thread in sorted(threads, key=lambda thread: thread["os_thread_id"] != pid)]
    counters = []
    for frame in chain(*paths[:1]):
        numbers = {name: int(text) for name, text in _variables(frame).items() if _is_whole(text)}
        if numbers and frame["filename"].endswith(".py") and not is_library(frame["filename"]):
            counters.append({"file": frame["filename"], "function": frame["name"], "numbers": numbers})
    calls = (_call(frames, paths) for frames in paths)
    return Dump("".join(map(_text, threads)), next(filter(None, calls), {}), counters)


def rights(problem: str) -> str:
    """Return why py-spy was not allowed to look and what to type, or the problem itself if it was another one."""
    if not any(word in problem.lower() for word in ("permission", "eperm", "not permitted")):
        return problem
    scope = _SCOPE.read_text().strip() if _SCOPE.exists() else "0"
    capabilities = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    if int(capabilities, 16) & _MAY_PTRACE:
        return "the system does not allow even root to trace processes. Run dtk attach on the host of this container"
    if Path("/.dockerenv").exists() or os.geteuid() == 0 or "kubepods" in Path("/proc/self/cgroup").read_text():
        give = "docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
        return f"this container may not trace processes. Start it with {give}; or run dtk attach on the host"
    why = f"{_SCOPE} is {scope}" if scope != "0" else "the processes are of another user"
    return f'{why}. Type: sudo env "PATH=$PATH" dtk attach'


def _text(thread: dict[str, Any]) -> str:
    doing = "active" if thread["active"] else "idle"
    lines = [f'Thread {thread["os_thread_id"] or 0} ({doing}): "{thread["thread_name"] or ""}"']
    for frame in thread["frames"]:
        line = f":{frame['line']}" if frame["line"] else ""
        name = " ".join(frame["name"].split())[:160]  # Names of templates fill pages.
        lines.append(f"    {name or '?'} ({' '.join(frame['filename'].split()) or '?'}{line})")
    return "\n".join(lines) + "\n"


def _call(frames: Frames, paths: list[Frames]) -> dict[str, str]:
    for number, frame in enumerate(frames):
        if frame["filename"].endswith("torch/distributed/distributed_c10d.py"):
            # A decorator of torch keeps the arguments as they were given; `group` itself is filled in later.
            outer = _variables(frames[number + 1]) if frames[number + 1 :] else {}
            variables = _variables(frame)
            group = variables.get("group")
            given = outer.get("kwargs", f'"group": {group}')
            peers = {name: variables[name] for name in ("src", "dst") if _is_whole(variables.get(name))}
            if '"group": <' not in given:
                return {"op": frame["name"], "group": "default", **peers}
            # All ranks run the outermost function that has the group in a variable, so they share its name.
            own = [at for path in paths for at in reversed(path) if not is_library(at["filename"])]
            named = [(at["name"], name) for at in own for name, text in _variables(at).items() if text == group]
            return {"op": frame["name"], "group": "other", **peers} | ({"name": ":".join(named[0])} if named else {})
    return {}


def _variables(frame: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["repr"] or "" for variable in frame["locals"] or ()}


def _is_whole(text: str | None) -> bool:
    return text is not None and text.isdecimal() and len(text) <= _MOST_DIGITS
