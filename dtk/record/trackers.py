"""The rank's side of a tracker: checks the installation, starts the process, and sends records without waiting."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import command
from diagnostics.contract.secrets import masked
from dtk.config.schema import CustomTracker, NoTracker, TensorboardTracker, WandbTracker
from dtk.errors import DtkError
from dtk.extras import require
from dtk.record.guard import Writer, report
from dtk.record.tracker_process import base_url, has_key, kill_with_children

CLOSE_S = 5.0  # Chosen: timeout for a tracker at the end of a run.
KILL_S = 1.0  # Chosen: a killed process exits immediately unless a driver blocks it.

TrackerConfig = NoTracker | WandbTracker | TensorboardTracker | CustomTracker


def check_tracker(tracker: TrackerConfig) -> None:
    """Check that the configured tracker can be used. Imports neither its package nor torch.

    DtkError if its package is not installed (names the extra), or W&B is required to be online without a key.
    """
    if tracker.name in ("none", "custom"):
        return
    require(tracker.name, f"tracker={tracker.name}", tracker.name, ", or choose tracker=none")
    if isinstance(tracker, WandbTracker) and tracker.mode == "online" and not has_key(base_url()):
        why = f"neither WANDB_API_KEY nor the netrc file has one for {base_url()}"
        fix = f"type {command('login', name='wandb')}, or use tracker.mode=offline"
        raise DtkError("tracker.mode=online needs a key", why, fix)


def offline_reason(tracker: TrackerConfig) -> str | None:
    """Return why W&B will certainly stay offline; None if it may go online, which its server decides."""
    if not isinstance(tracker, WandbTracker):
        return None
    mode = tracker.mode if tracker.mode != "auto" else os.environ.get("WANDB_MODE")
    if mode:
        return f"{'tracker.mode' if tracker.mode != 'auto' else 'WANDB_MODE'}={mode}" if mode == "offline" else None
    return None if has_key(base_url()) else "no key in WANDB_API_KEY or the netrc file"


def offline_logs(run_folder: Path) -> list[Path]:
    """Return W&B's offline folders in a run folder, one per attempt, oldest first."""
    return sorted({log.parent for log in run_folder.glob("wandb/offline-run-*/*.wandb")})


class Tracker:
    """Mirrors metrics to a tracker process through a pipe that a thread fills."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.topic = f"tracker {config.tracker.name}"
        # Of a custom loop only what its user passed.
        own = config.own if hasattr(config, "own") else dataclasses.asdict(config)
        # Names that a script passes to `attach` are its own.
        allow = getattr(config, "allow_targets", [getattr(config.tracker, "_target_", "")])
        about = {"run_id": folder.name, "folder": str(folder.absolute()), "config": masked(own)}
        self._settings = {**dataclasses.asdict(config.tracker), **about, "allow": allow}
        self._settings["tags"] = [*getattr(config, "tags", ()), *self._settings.get("tags", ())]
        # What W&B shows; a custom tracker needs its `arguments` unchanged.
        self._settings |= {key: masked(self._settings.get(key)) for key in ("tags", "notes", "group", "job_type")}
        self._writer = Writer(self.topic)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def start(self) -> None:
        """Start the process from the thread."""
        self._writer.start()
        self._writer.submit(self.topic, self._launch)

    def log(self, record: dict[str, Any]) -> None:
        """Queue the metrics of one step; takes microseconds."""
        self._writer.submit(self.topic, lambda: self._send({"log": record}))

    def alert(self, title: str, text: str) -> None:
        """Queue an urgent message."""
        self._writer.submit(self.topic, lambda: self._send({"alert": [title, text]}))

    def summary(self, figures: dict[str, Any]) -> None:
        """Queue the final figures."""
        self._writer.submit(self.topic, lambda: self._send({"summary": figures}))

    def replay(
        self, records: Iterable[dict[str, Any]], figures: dict[str, Any], exit_code: Any, timeout_s: float
    ) -> tuple[int, int]:
        """Send a finished run, and wait for the tracker, which is killed after `timeout_s` seconds.

        Return the exit code of the tracker's process, -9 if it was killed, and the number of records sent.
        """
        self._launch()
        assert self._process is not None and self._process.stdin is not None
        limit = threading.Timer(timeout_s, self._kill)
        limit.start()
        count = 0
        with suppress(RuntimeError):  # Its process exited: its exit code explains why.
            for record in records:
                self._send({"log": record})
                count += 1
            self._send({"summary": figures})
            self._send({"end": exit_code if isinstance(exit_code, int) else 1})
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        limit.cancel()
        return code, count

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            kill_with_children(self._process.pid)

    def close(self, exit_code: int, timeout_s: float = CLOSE_S) -> None:
        """Let the tracker finish for a few seconds; after that it continues alone, or is killed if it stalls."""
        ends_s = time.monotonic() + timeout_s
        self._writer.submit(self.topic, lambda: self._send({"end": exit_code}))
        sent = self._writer.close(timeout_s)
        if self._process is None or self._process.stdin is None:
            return
        if not sent:
            self._kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_S)
            return
        self._process.stdin.close()
        try:
            self._process.wait(max(0.1, ends_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            report(self.topic, f"not finished after {timeout_s:g} s", f"it continues as process {self._process.pid}")

    def _launch(self) -> None:
        # The same packages and custom modules as here.
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        environment = {**os.environ, "WANDB_DIR": self._settings["folder"], "WANDB_SILENT": "true", "PYTHONPATH": paths}
        for name in [name for name in os.environ if name.startswith("SLURM_")]:  # W&B records each argument.
            if masked(environment[name], name) != environment[name]:
                del environment[name]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dtk.record.tracker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the ranks; the tracker exits when its pipe closes.
        )
        self._send(self._settings)

    def _send(self, message: dict[str, Any]) -> None:
        if self._ended or self._process is None or self._process.stdin is None:
            return
        data = memoryview(json.dumps(message, default=str).encode() + b"\n")
        try:
            while data:
                data = data[self._process.stdin.write(data) :]
        except OSError as error:
            self._ended = True
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_S)  # Otherwise it remains a zombie until this rank exits.
            raise RuntimeError("its process ended (see stderr); metrics.jsonl is complete") from error
