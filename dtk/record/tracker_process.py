"""The tracker's own process, a script without dtk: reads records from standard input for W&B or TensorBoard.
Lines: first the settings, then {"log": record}, {"summary": figures}, {"end": exit_code}. The pipe's end ends the run.
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
from typing import Any, TextIO

PROBE_S = 2.0  # How long a server may take to answer before the run is tracked offline.
INIT_S = 20.0  # Chosen: wandb waits 90 s by default, longer than a run should for a tracker.
FINISH_S = 30.0  # How long the tracker may go on after the run ended.
POLL_S = 1.0  # Chosen: a dashboard is no faster.


class Wandb:
    """Weights & Biases."""

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value]:
            del os.environ[name]  # Empty means unset to a shell; W&B refuses an empty mode.
        import wandb

        mode = os.environ.get("WANDB_MODE") if settings["mode"] == "auto" else settings["mode"]
        try:
            self._run = self._init(wandb, settings, mode or choose_mode())
        except Exception as error:
            if settings["mode"] != "auto":
                raise
            say(f"wandb: {type(error).__name__}: {error}; tracking offline")
            wandb.teardown()  # Its service holds the run's id for the attempt that failed.
            self._run = self._init(wandb, settings, "offline")

    def _init(self, wandb: Any, settings: dict[str, Any], mode: str) -> Any:
        given = {name: settings[name] for name in ("project", "entity", "group", "tags", "config", "job_type", "notes")}
        given |= {"id": settings["run_id"], "name": settings["run_id"], "dir": settings["folder"], "mode": mode}
        options = wandb.Settings(init_timeout=INIT_S, console="off", silent=True)
        return wandb.init(**given, resume="allow" if mode == "online" else None, settings=options)

    def log(self, record: dict[str, Any]) -> None:
        """Scalars of one step."""
        # W&B's own time axis is that of the record, also when it is sent later.
        self._run.log({**scalars(record), "_timestamp": record.get("time_s", time.time())}, step=record["step"])

    def summary(self, figures: dict[str, Any]) -> None:
        """Record the final figures."""
        self._run.summary.update(figures)

    def finish(self, exit_code: int) -> None:
        """Send what is left."""
        self._run.finish(exit_code=exit_code)


class Tensorboard:
    """TensorBoard event files."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.path.join(settings["folder"], "tensorboard"))  # noqa: PTH118
        self._writer.add_text("config", f"```\n{json.dumps(settings['config'], indent=2)}\n```")

    def log(self, record: dict[str, Any]) -> None:
        """Scalars of one step."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"], walltime=record.get("time_s"))

    def summary(self, figures: dict[str, Any]) -> None:
        """Record the final figures."""
        self._writer.add_text("summary", f"```\n{json.dumps(figures, indent=2)}\n```")

    def finish(self, exit_code: int) -> None:
        """Send what is left."""
        self._writer.close()


def say(text: str) -> None:
    """Print one line on standard error."""
    print(" ".join(f"dtk: {text}".split()), file=sys.stderr, flush=True)


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values of a record."""
    return {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}


def choose_mode() -> str:
    """`online` when a key is configured and the server answers at once, else `offline`."""
    url = base_url()
    return "online" if has_key(url) and answers(url) else "offline"


def base_url() -> str:
    """Address of the server: from WANDB_BASE_URL, or as `wandb login --host` keeps it, or the public one."""
    folder = os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb")  # noqa: PTH111
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(os.path.join(folder, "settings"), encoding="utf-8")  # noqa: PTH118
        url = settings.get("default", "base_url", fallback="")
    except (configparser.Error, UnicodeDecodeError):
        url = ""
    return os.environ.get("WANDB_BASE_URL") or url or "https://api.wandb.ai"


def has_key(url: str) -> bool:
    """Whether a key or an identity token is in the environment, or a key for this server in the user's netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(url).hostname or ""
    # Named, so that Python does not refuse a file that others may read: W&B does not either.
    file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")  # noqa: PTH111
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return False


def answers(url: str) -> bool:
    """Whether an HTTP answer of any kind comes within PROBE_S seconds, name resolution included."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=PROBE_S).close()
            answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except (OSError, ValueError):
            return

    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(PROBE_S)


def follow(lines: TextIO) -> None:
    """Serve one run until the pipe ends."""
    settings = json.loads(lines.readline())
    sink = Wandb(settings) if settings["name"] == "wandb" else Tensorboard(settings)
    exit_code = 1  # Of a run that ends without a word.
    for line in lines:
        message = json.loads(line)
        if "log" in message:
            sink.log(message["log"])
        elif "summary" in message:
            sink.summary(message["summary"])
        else:
            exit_code = message["end"]
    sink.finish(exit_code)


def end_after(rank: int) -> None:
    """End this process and what it started when the rank has been gone for FINISH_S, whatever a server does."""
    while os.getppid() == rank:
        time.sleep(POLL_S)
    time.sleep(FINISH_S)
    say(f"tracker: not done {FINISH_S:g} s after the run; ended")
    if os.getpgrp() == os.getpid():  # Its own session, as dtk starts it.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> int:
    """Run the tracker; a failure is one line on standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_after, args=(os.getppid(),), daemon=True).start()
    try:
        follow(sys.stdin)
    except Exception as error:
        say(f"tracker: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # The library's own exit handlers may wait for a server; everything is sent or given up.
    os._exit(code)
