"""The tracker's process: reads records of a rank from standard input, for W&B, TensorBoard or a custom tracker. Lines:
first the settings, then {"log": record}, {"summary": figures}, {"alert": [title, text]}, {"end": exit_code}. The run
ends with the pipe: if it did not finish, the process then waits for the status and runs a diagnosis.
"""

import configparser
import json
import netrc
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.origins import flat
from diagnostics.report import markdown
from diagnostics.runs.records import mapping, number
from dtk.data.network import bounded
from dtk.record.metrics import BOOKKEEPING
from dtk.record.own_tracker import OwnTracker

PROBE_S = 2.0  # Chosen: time limit for a server to answer before the run is tracked offline.
INIT_S = 20.0  # Chosen: wandb waits 90 s by default, longer than a run should wait for a tracker.
FINISH_S = 60.0  # Chosen: time limit of the tracker after the end of the run, including a diagnosis.
UPLOAD_S = 3600.0  # Chosen: the same if a checkpoint is uploaded: 360 GB at 100 MB/s.
POLL_S = 1.0  # Chosen: dashboards refresh no faster.
# Sections of dtk's configuration that are no hyperparameters: TensorBoard shows the first few, in alphabetical order.
MACHINERY = (
    "allow_targets", "callbacks", "checkpoint", "launcher", "nccl", "preflight", "record", "resume", "runs_folder",
    "tags", "tracker", "watch",
)  # fmt: skip
HPARAM_METRICS = ("loss", "validation_loss", "tokens_per_s", "step_time_s", "peak_memory_bytes", "mfu")


class Wandb(OwnTracker):
    """Weights & Biases."""

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value]:
            del os.environ[name]  # An empty value means unset to a shell; W&B rejects an empty mode.
        import wandb

        self._wandb, self._settings = wandb, settings
        self._began_s: float | None = None
        self._last: dict[str, float] = {"step": 0}
        """Axes of the last record."""

    def begin(self, run_id: str, folder: Path, config: dict[str, Any]) -> None:
        """Start online, or continue the run with this id; offline if that fails and online is not required."""
        mode = os.environ.get("WANDB_MODE") if self._settings["mode"] == "auto" else self._settings["mode"]
        given = {name: self._settings[name] for name in ("project", "entity", "group", "tags", "job_type", "notes")}
        given |= {"id": run_id, "name": run_id, "dir": str(folder), "config": config}
        try:
            if not mode:  # A key must be configured, and the server must answer soon.
                mode = "online" if has_key(url := base_url()) and answers(url) else "offline"
            self._init(mode, given)
        except Exception as error:
            if self._settings["mode"] != "auto":
                raise
            print_message(f"wandb: {type(error).__name__}: {error}; tracking offline")
            self._wandb.teardown()  # Its service keeps the run's id for the attempt that failed.
            self._init("offline", given)
        created = mapping(str(RunPaths(folder).manifest), []).get("created")
        if isinstance(created, str):
            self._began_s = datetime.fromisoformat(created).timestamp()
        for name in ("step", "tokens", "seconds", *BOOKKEEPING):
            self._run.define_metric(name, hidden=name in BOOKKEEPING)
        self._run.define_metric("*", step_metric=self._settings["x_axis"])

    def _init(self, mode: str, given: dict[str, Any]) -> None:
        options = self._wandb.Settings(init_timeout=INIT_S, console="off", silent=True)
        given |= {"mode": mode, "resume": "allow" if mode == "online" else None}
        self._run = self._wandb.init(**given, settings=options)

    def log(self, step: int, figures: dict[str, float], time_s: float) -> None:
        """Log the scalars of one step at the time of the record, even if they are sent later."""
        self._began_s = time_s if self._began_s is None else self._began_s
        self._last = {"step": step, "seconds": max(0.0, time_s - self._began_s), "_timestamp": time_s}
        self._run.log({**figures, **self._last}, step=step)

    def summary(self, figures: dict[str, Any]) -> None:
        """Record the final figures."""
        self._run.summary.update(figures)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show a table at the last step."""
        values = [[str(cell) if isinstance(cell, list) else cell for cell in row] for row in rows]
        values_table = self._wandb.Table(columns=list(columns), data=values, allow_mixed_types=True)
        self._run.log({name: values_table, **self._last}, step=self._last["step"])

    def artifact(self, name: str, kind: str, files: dict[str, Path]) -> None:
        """Upload files as a version of an artifact of this run."""
        artifact = self._wandb.Artifact(f"{name}-{self._run.id}", type=kind)
        for inside, path in files.items():
            artifact.add_file(str(path), name=inside)
        self._run.log_artifact(artifact)

    def alert(self, title: str, text: str) -> None:
        """Send a message through W&B alerts."""
        self._run.alert(title=title, text=text, level="ERROR")

    def finish(self, exit_code: int) -> None:
        """Send everything that is pending."""
        self._run.finish(exit_code=exit_code)


class Tensorboard(OwnTracker):
    """TensorBoard event files: scalars, the hyperparameters, and tables as text."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(Path(settings["folder"]) / "tensorboard"))

    def begin(self, run_id: str, folder: Path, config: dict[str, Any]) -> None:
        """Write the configuration, as text and as hyperparameters."""
        from torch.utils.tensorboard import summary

        self._writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```")
        skipped = MACHINERY if "launcher" in config else ()
        settings = {key: value for key, value in flat(config).items() if key.partition(".")[0] not in skipped}
        plain = {key: value if type(value) in (int, float) else str(value) for key, value in settings.items()}
        experiment, session, self._ended = summary.hparams(  # type: ignore[no-untyped-call]
            plain, dict.fromkeys(HPARAM_METRICS, 0.0)
        )
        for part in (experiment, session):
            self._writer.file_writer.add_summary(part)

    def log(self, step: int, figures: dict[str, float], time_s: float) -> None:
        """Log the scalars of one step."""
        for name, value in figures.items():
            if name not in BOOKKEEPING:
                self._writer.add_scalar(name, value, step, walltime=time_s)

    def summary(self, figures: dict[str, Any]) -> None:
        """Record the final figures."""
        self._writer.add_text("summary", f"```\n{json.dumps(figures, indent=2)}\n```")

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a table as Markdown."""
        self._writer.add_text(name, markdown.table([columns, *([*map(str, row)] for row in rows)]))

    def alert(self, title: str, text: str) -> None:
        """Write the message as text."""
        self._writer.add_text("alert", f"{title}: {text}")

    def finish(self, exit_code: int) -> None:
        """Flush and close the event file; the session of a run that failed has no successful end."""
        if exit_code == 0:
            self._writer.file_writer.add_summary(self._ended)
        self._writer.close()


def print_message(text: str) -> None:
    """Print one line on standard error."""
    print(" ".join(f"dtk: {text}".split()), file=sys.stderr, flush=True)


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record except its step."""
    return {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}


def tracker_of(settings: dict[str, Any]) -> OwnTracker:
    """Build the tracker that the settings select."""
    if settings["name"] == "custom":
        from dtk.config.instantiate import instantiate

        tracker: OwnTracker = instantiate(settings["_target_"], settings["arguments"], settings["allow"], OwnTracker)
        return tracker
    return Wandb(settings) if settings["name"] == "wandb" else Tensorboard(settings)


def base_url() -> str:
    """Return the server's URL: from WANDB_BASE_URL, or as `wandb login --host` stored it, or the public one."""
    folder = os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb")  # noqa: PTH111
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(os.path.join(folder, "settings"), encoding="utf-8")  # noqa: PTH118
        url = settings.get("default", "base_url", fallback="")
    except (configparser.Error, UnicodeDecodeError):
        url = ""
    return os.environ.get("WANDB_BASE_URL") or url or "https://api.wandb.ai"


def has_key(url: str) -> bool:
    """Whether the environment has a key or an identity token, or the user's netrc a key for this server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(url).hostname or ""
    # Given explicitly, as Python otherwise rejects a file that others can read; W&B does not either.
    file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")  # noqa: PTH111
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return False


def answers(url: str) -> bool:
    """Whether any HTTP response arrives within PROBE_S seconds, including name resolution."""

    def ask() -> None:
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(url, timeout=PROBE_S).close()

    with suppress(OSError, ValueError):
        bounded(ask, PROBE_S)
        return True
    return False


def follow(settings: dict[str, Any], lines: TextIO) -> None:
    """Serve one run until the pipe ends."""
    uploads = settings.get("checkpoints") == "last"
    tracker, paths = tracker_of(settings), RunPaths(Path(settings["folder"]))
    tracker.begin(settings["run_id"], paths.root, settings["config"])
    exit_code = 1  # The exit code of a run whose pipe closed without one.
    for line in lines:
        message = json.loads(line)
        if "log" in message:
            record = message["log"]
            tracker.log(record["step"], scalars(record), number(record.get("time_s")) or time.time())
        elif "summary" in message:
            tracker.summary(message["summary"])
        elif "alert" in message:
            tracker.alert(*message["alert"])
        else:
            exit_code = message["end"]
    try:
        conclude(tracker, paths, exit_code, uploads)
    except Exception as error:  # Pending data must still be sent.
        print_message(f"tracker: {type(error).__name__}: {error}")
    tracker.finish(exit_code)


def conclude(tracker: OwnTracker, paths: RunPaths, exit_code: int, uploads: bool) -> None:
    """Send the final records from the run folder: an alert, tables, the diagnosis, the last checkpoint."""
    from dtk.record import tracker_tables

    status = tracker_tables.ended(paths, tracker_tables.SETTLE_S if exit_code else 0.0)
    failed = status is not None and status.state in ("failed", "hung", "oom")
    if status is not None and failed:
        reason = status.reason or (status.failure.reason if status.failure else "")
        tracker.alert(f"run {status.state}", f"{paths.root.name}: {reason}")
    for name, table in tracker_tables.tables(paths).items():
        tracker.table(name, *table)
    if failed and (diagnosis := tracker_tables.diagnosis(paths)) is not None:
        tracker.table("diagnosis", *diagnosis[0])
        tracker.artifact("diagnosis", "report", diagnosis[1])
    if uploads and (files := tracker_tables.last_checkpoint(paths)):
        tracker.artifact("checkpoint", "model", files)


def end_after(parent: int, limit_s: float) -> None:
    """Kill this process and its children once the process `parent` has been gone for this long."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    time.sleep(limit_s)
    print_message(f"tracker: not finished {limit_s:g} s after the run; terminated")
    kill_with_children(os.getpid())


def kill_with_children(pid: int) -> None:
    """Kill a process and all that it started: W&B's core leads a session of its own, which would stay if hung."""
    with suppress(ImportError):  # Of the extra train; `dtk sync` runs without it.
        import psutil

        with suppress(psutil.Error):
            for child in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> int:
    """Run the tracker; print a failure as one line on standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = json.loads(sys.stdin.readline())
        limit_s = UPLOAD_S if settings.get("checkpoints") == "last" else FINISH_S
        threading.Thread(target=end_after, args=(os.getppid(), limit_s), daemon=True).start()
        follow(settings, sys.stdin)
    except Exception as error:
        print_message(f"tracker: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # The library's own exit handlers may wait for a server; everything is sent or abandoned by now.
    os._exit(code)
