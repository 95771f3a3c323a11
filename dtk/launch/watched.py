"""A command of the user's under the live watch: its environment, its end, and what is said about it.

The ranks watch themselves (`dtk.record.attach`) and leave a verdict in the folder; here it is found and told. Needs
no torch: the command's Python may be another one.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from diagnostics.artifacts import RunPaths, Verdict, read_heartbeat, read_verdict
from diagnostics.invocation import command as command_line
from diagnostics.invocation import typed
from diagnostics.runs_text import clean
from dtk.config.schema import RecordConfig
from dtk.launch.command import Command
from dtk.launch.explain import explanation, prepare
from dtk.record.flight import environment as recorder_environment
from dtk.record.told import tell, was_told

POLL_S = 0.1
LEAVE_S = 1.0
"""Wait for the command to end by itself after the watch ended its ranks, before the report is printed."""
HUNG = 1
"""Exit code when the watch ended the job."""


def run_watched(argv: list[str], folder: Path, stall_timeout_s: float) -> int:
    """Run the command to its end, or to that of its watch.

    Args:
        argv: the command.
        folder: exists, absolute; gets all records.
        stall_timeout_s: limit of the watch.

    Returns:
        exit code.

    Raises:
        DtkError: the command cannot be started, or its log not be written.
    """
    paths = RunPaths(folder)
    recorder = recorder_environment(RecordConfig(), paths)
    environment = {**recorder, **os.environ, **tell(paths, stall_timeout_s)}
    say(f"records in {typed(folder)}")
    for name, value in recorder.items():
        if environment[name] != value:
            say(f"your {name}={environment[name]} is kept")
    log = folder / "logs" / socket.gethostname() / "stderr.log"
    with Command(argv, environment, log) as command:
        ready = False
        while command.wait(POLL_S) is None and _verdict(paths) is None:
            if not ready and paths.heartbeat(0).parent.is_dir():
                ready = True
                prepare()
        verdict = _verdict(paths)
        if verdict is None:
            return _ended(command, paths)
        command.keeps_log = False
        _hung(command, paths, verdict)
    _end_ranks(paths)
    return HUNG


def say(text: str) -> None:
    """One line on standard error, where the command's standard output stays what it is."""
    print(f"dtk watch: {clean(text)}", file=sys.stderr, flush=True)


def _hung(command: Command, paths: RunPaths, verdict: Verdict) -> None:
    """The reason at once; the report when the command is gone, which takes about as long as making it."""
    say(verdict.reason)
    text = explanation(paths, sys.stderr.isatty())
    if command.wait(LEAVE_S) is not None:
        command.drain()
    if text:
        print(text, file=sys.stderr, flush=True)
    say(f"more: {command_line('diagnose', typed(paths.root), '-v')}")


def _ended(command: Command, paths: RunPaths) -> int:
    """The command's exit code; the cause if it failed and nobody stopped it."""
    command.drain()
    code = command.poll() or 0
    if code and not command.stopped:
        if text := explanation(paths, sys.stderr.isatty()):
            print(text, file=sys.stderr, flush=True)
        elif not paths.heartbeat(0).parent.is_dir():
            say(f"the command failed with exit code {code} before any process group was made")
        else:
            more = command_line("diagnose", typed(paths.root), "-v")
            say(f"the command failed with exit code {code}; {more} tells what is known")
    return code


def _verdict(paths: RunPaths) -> Verdict | None:
    """Why the ranks were ended, if they were, in whichever attempt."""
    found = (read_verdict(path) for path in paths.verdict(0).parent.parent.glob("attempt_*/watch.json"))
    return max((verdict for verdict in found if verdict), key=lambda verdict: verdict.time_s, default=None)


def _end_ranks(paths: RunPaths) -> None:
    """Ranks of this host that outlived the command: it may have had to be killed."""
    for path in paths.heartbeat(0).parent.glob("rank_*.json"):
        beat = read_heartbeat(path)
        if beat is None or beat.host != socket.gethostname():
            continue
        with suppress(OSError):  # It is gone, or not ours.
            if was_told(beat.pid, paths):
                os.kill(beat.pid, signal.SIGKILL)
