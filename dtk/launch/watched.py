"""Runs a user's command under the live watch (`dtk.record.watched_rank`): environment, exit code and output."""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from diagnostics.contract import artifacts
from diagnostics.contract.artifacts import RunPaths, Verdict, read_heartbeat, read_verdict, write_json
from diagnostics.contract.formatting import clean, command as command_line, ranks_spoken, typed
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers import start
from diagnostics.runs.records import mapping, number
from dtk.config.schema import RecordConfig
from dtk.launch.command import KILL_S, Command
from dtk.launch.console import explanation, import_diagnosis
from dtk.record.flight import environment as recorder_environment
from dtk.record.guard import bounded
from dtk.record.verdict import find_desync
from dtk.record.watch_environment import STANDS_S, watch_variables, watched_processes

POLL_S = 0.1  # Chosen: far below the seconds that a verdict takes.
LOOK_S = 1.0  # Chosen: interval of checks for ranks that have not joined; their timeout is minutes.
LEAVE_S = 1.0  # Chosen: most commands exit at once when their ranks are gone; the report does not wait for others.
COMPARE_S = 5.0  # Chosen: limit for comparing the last calls; a disk that stalls must not hold the exit for longer.
ANSWER_S = 2.5  # Chosen: ranks answer after dumps of 2 s at most; a scheduler kills 30 s after its stop signal.
FRESH_S = 5.0  # Chosen: five missed reports: it has exited, or native code holds the GIL; its state is unknown.
HUNG = 1  # Exit code if the watch ended the job.


def run_watched(argv: list[str], folder: Path, stall_timeout_s: float, start_timeout_s: float) -> int:
    """Run a command until it exits or its watch ends it; DtkError if it cannot start, or its log be written."""
    paths = RunPaths(folder)
    recorder = recorder_environment(RecordConfig(), paths)
    environment = {**recorder, **os.environ, **watch_variables(paths, stall_timeout_s)}
    print_message(f"records in {typed(folder)}")
    for name, value in recorder.items():
        if environment[name] != value:
            print_message(f"your {name}={environment[name]} is kept")
    log = folder / "logs" / socket.gethostname() / "stderr.log"
    with Command(argv, environment, log) as command:
        _follow(command, paths, start_timeout_s)
        verdict = _verdict(paths)
        if verdict is None:
            code = _ended(command, paths)
        else:
            command.keeps_log, code = False, HUNG
            # The reason is printed immediately, the report once the command has exited.
            print_message(verdict.reason)
            text = explanation(paths, sys.stderr.isatty())
            if command.wait(LEAVE_S) is not None:
                command.drain()
            _show(text)
            print_message(f"more: {_more(paths)}")
    if code:  # A command that succeeds may leave a service behind.
        _end_what_is_left(paths)
    return code


def _end_what_is_left(paths: RunPaths) -> None:
    """End the job's processes that outlive its command: ranks, if it was killed, and workers that they started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        ends_s = time.monotonic() + KILL_S
        for pid in (remaining := watched_processes(paths)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, how)
        while remaining and watched_processes(paths) and time.monotonic() < ends_s:
            time.sleep(POLL_S)


def _follow(command: Command, paths: RunPaths, start_timeout_s: float) -> None:
    ready, looked_s = False, time.monotonic()
    while command.wait(POLL_S) is None and _verdict(paths) is None:
        if not ready and paths.heartbeat(0).parent.is_dir():
            ready = command.holds = True
            import_diagnosis()
        if command.pending_signal is not None:
            _ask(paths)
            command.release()
        if time.monotonic() - looked_s > LOOK_S and not command.stopped:
            looked_s = time.monotonic()
            if (verdict := missing_ranks(paths, start_timeout_s)) is not None:
                write_json(paths.verdict(verdict.attempt), verdict)
                command.end()  # Ranks that have not joined have no watch that would end them.


def _ask(paths: RunPaths) -> None:
    """Ask the ranks of this host by a file, as a hanging rank handles no signal, and wait up to ANSWER_S seconds."""
    host = socket.gethostname()
    beats = {path: read_heartbeat(path) for path in paths.heartbeat(0).parent.glob("rank_*.json")}
    awaited = [paths.answer(int(path.stem[5:])) for path, beat in beats.items() if beat and beat.host == host]
    try:
        paths.question.parent.mkdir(parents=True, exist_ok=True)
        paths.question.touch()
    except OSError:  # The disk is full: the signal is more important.
        return
    ends_s = time.monotonic() + ANSWER_S
    while time.monotonic() < ends_s and not all(path.exists() for path in awaited):
        time.sleep(POLL_S / 2)


def _stood(paths: RunPaths) -> bool:
    """Whether all ranks that answered were stalled, and one of them waited in a call."""
    answers = [mapping(str(path), []) for path in paths.answer(0).parent.glob("answer_*.json")]
    still = [answer for answer in answers if (number(answer.get("idle_s")) or 0.0) >= STANDS_S]
    return bool(still) and len(still) == len(answers) and any(answer.get("inside") for answer in still)


def print_message(text: str) -> None:
    """Print one line on standard error, which leaves the command's standard output unchanged."""
    print(f"dtk watch: {clean(text)}", file=sys.stderr, flush=True)


def _more(paths: RunPaths) -> str:
    return command_line("diagnose", typed(paths.root), "-v")


def _show(report: str) -> None:
    if report:
        print(report, file=sys.stderr, flush=True)


def _ended(command: Command, paths: RunPaths) -> int:
    """Return the command's exit code; print the cause if it failed without being stopped."""
    command.drain()
    code = command.poll() or 0
    if command.stopped:  # The cause of the hang if it was stalled; otherwise where to look.
        if paths.question.parent.is_dir():
            if _stood(paths):
                _show(explanation(paths, sys.stderr.isatty()))
            print_message(f"stopped; {command_line('diagnose', typed(paths.root))} shows where the ranks were")
    elif code:
        had_ranks = paths.heartbeat(0).parent.is_dir()
        _show(text := explanation(paths, sys.stderr.isatty(), always=had_ranks))
        if not had_ranks and not text:
            print_message(f"the command failed with exit code {code} before any process group was created")
        elif had_ranks:
            print_message(f"the command failed with exit code {code}; for what was recorded: {_more(paths)}")
    # The exit code here tells nothing about ranks on other nodes.
    elif not _differed(paths) and {beat.host for beat in _beats(paths)} <= {socket.gethostname()}:
        record = {"kind": artifacts.FINISHED, "command": command.argv, "time_s": time.time()}
        with suppress(OSError):  # A full disk: the command's own result remains.
            write_json(paths.finished, record)
    return code


def _differed(paths: RunPaths) -> bool:
    """Return whether the ranks' last calls differed, which the live watch may miss if a command exits normally."""

    def compare() -> Verdict | None:
        attempt = max((beat.attempt for beat in _beats(paths)), default=0)
        ranks = [int(path.stem[5:]) for path in paths.ring(0).parent.glob("rank_*.ring")]
        return find_desync(paths, attempt, max(ranks, default=-1) + 1, time.time())

    verdict = bounded("comparison of the last calls", compare, COMPARE_S)
    if verdict is not None:
        print_message(verdict.reason)
        _show(explanation(paths, sys.stderr.isatty()))
        print_message(f"more: {_more(paths)}")
    return verdict is not None


def _verdict(paths: RunPaths) -> Verdict | None:
    """Return why the ranks were terminated, in whichever attempt; None if they were not."""
    verdicts = (read_verdict(path) for path in paths.verdict(0).parent.parent.glob("attempt_*/watch.json"))
    return max((verdict for verdict in verdicts if verdict), key=lambda verdict: verdict.time_s, default=None)


def _beats(paths: RunPaths) -> list[artifacts.Heartbeat]:
    beats = (read_heartbeat(path) for path in paths.heartbeat(0).parent.glob("rank_*.json"))
    return [beat for beat in beats if beat is not None]


def missing_ranks(paths: RunPaths, limit_s: float) -> Verdict | None:
    """Return a verdict if ranks waited for `limit_s` while all missing ranks of this node stood still, else None.

    The same if every rank of the job is missing and stands still, as at a lock that nobody will release, or if all came
    to init_process_group and stand still in it.
    """
    attempt, starts = _starts(paths)
    if not starts:
        return None
    now_s, host = time.time(), socket.gethostname()
    waiting = {rank: fact for rank, fact in starts.items() if fact.fields["state"] == "meets" and _runs(fact, host)}
    missing = {rank: fact for rank, fact in starts.items() if fact.fields["state"] == "started"}
    own = {rank: fact for rank, fact in missing.items() if fact.fields["host"] == host}
    world = max(fact.fields["nranks"] for fact in starts.values())
    nobody, everybody = not waiting and len(missing) == world, not missing and len(waiting) == world
    if everybody:
        own = {rank: fact for rank, fact in waiting.items() if fact.fields["host"] == host}
    if not (waiting or nobody) or not own or any(fact.fields["state"] == "met" for fact in starts.values()):
        return None
    waits = waiting or missing
    waited_s = min(now_s - fact.fields["since_s" if waiting else "worked_s"] for fact in waits.values())
    still = all(
        _runs(fact, host) and now_s - fact.fields["alive_s"] < FRESH_S and now_s - fact.fields["worked_s"] >= limit_s
        for fact in (waiting if everybody else own if waiting else missing).values()
    )
    if waited_s < limit_s or not still:
        return None
    first = own[min(own)]
    frame = own_line(first.fields["frames"]) or next(iter(first.fields["frames"]), None)
    place = "an unknown place" if frame is None else f"{Path(frame.file).name}:{frame.line} in {frame.function}"
    late, others = sorted(own if waiting else missing), sorted(waiting)
    if everybody:
        stood = f"all {world:,} ranks waited in init_process_group for {waited_s:.0f} s, at {place}"
        return Verdict("stall", stood, [], others, attempt=attempt, time_s=now_s)
    if nobody:
        stood = f"no rank reached init_process_group: {ranks_spoken(late)} made no progress for {waited_s:.0f} s"
        return Verdict("stall", f"{stood} at {place}", [], late, attempt=attempt, time_s=now_s)
    waited = f"{ranks_spoken(others)} waited in init_process_group for {waited_s:.0f} s for {ranks_spoken(late)}"
    return Verdict("stall", f"{waited}, which made no progress at {place}", late, others, attempt=attempt, time_s=now_s)


def _starts(paths: RunPaths) -> tuple[int, dict[int, LogFact]]:
    """Return the number of the last attempt, and the start reports of its ranks."""
    folders = [folder for folder in paths.start(0, 0).parent.parent.glob("attempt_*") if folder.name[8:].isdecimal()]
    last = max(folders, key=lambda folder: int(folder.name[8:]), default=None)
    starts: dict[int, LogFact] = {}
    for path in last.glob("rank_*.json") if last else ():
        with suppress(OSError, ValueError):  # The file is being written for the first time.
            fact = start.read(path, path.name, Limits())
            if fact.rank is not None:
                starts[fact.rank] = fact
    return int(last.name[8:]) if last else 0, starts


def _runs(fact: LogFact, host: str) -> bool:
    """Whether its process is running; on another host this is unknown and counts as running."""
    if fact.fields["host"] != host:
        return True
    try:
        os.kill(fact.fields["pid"], 0)
    except (OSError, TypeError, OverflowError):  # The file may contain anything.
        return False
    return True
