"""Terminal output of `dtk run`: banner, progress, failure and its short diagnosis, next command."""

import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from textwrap import indent

from diagnostics.contract.artifacts import Failure, RunPaths, Status, read_status, write_json
from diagnostics.contract.files import open_regular, read_json
from diagnostics.contract.formatting import clean, command, counted, override, ranks_spoken, region_text, typed
from diagnostics.contract.mesh import divisors
from dtk.config.placement import Placement, tp_warning
from dtk.config.schema import Config
from dtk.errors import USER_ERROR
from dtk.launch.blame import find_failure
from dtk.nccl.effect import keep_effect
from dtk.nccl.lint import doubts
from dtk.nccl.render import ENVIRONMENT, Rendered, render
from dtk.record.guard import bounded
from dtk.record.trackers import offline_logs, offline_reason
from dtk.train.progress import REPLACEABLE

POLL_S = 0.1  # Chosen: lines appear without visible delay.
_ERASE = "\r\x1b[2K"
LIMIT_S = 20.0  # Chosen: longer than a terminal should wait; the run's own reason is printed before.


class Console:
    """Prints for one run. Uses colours and a live line only on a terminal."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._line_open = False

    def line(self, text: str, colour: int | None = None) -> None:
        """Print a permanent line, in bold and with a colour (an ANSI code) if one is given and this is a terminal."""
        text = clean(text)
        self.rendered(f"\x1b[1;{colour}m{text}\x1b[0m" if colour is not None and self.live else text)

    def rendered(self, text: str) -> None:
        """Print text that a renderer has already made safe for a terminal, in place of the live line."""
        _write(f"{_ERASE * self._line_open}{text}\n")
        self._line_open = False

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces on a terminal; otherwise print it as `line` does."""
        if not self.live:
            self.line(text)
            return
        width = shutil.get_terminal_size().columns
        _write(f"{_ERASE}{clean(text)[: width - 1]}")
        self._line_open = True

    def fields(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print labels and texts, aligned and indented; a row without a label continues the one before."""
        from diagnostics.report import document as doc, terminal

        fields = doc.Fields(tuple(doc.Field(label, text) for label, text in rows))
        text = terminal.render(doc.Document("", "", (fields,)), columns=None, colour=self.live)
        self.rendered(indent(text, "  ").rstrip("\n"))

    def end_live(self) -> None:
        """Make the live line permanent and continue below it."""
        if self._line_open:
            _write("\n")
            self._line_open = False

    def failure(self, failure: Failure, state: str, paths: RunPaths) -> None:
        """Print five lines: which rank, what, where, which other ranks it took down, which log."""
        where = [f"step {failure.step}"] if failure.step is not None else []
        where += [f"region {region_text(failure.region)}"] if failure.region else []
        who = f": rank {failure.rank}{' failed first' * (state != 'hung')}" if failure.rank >= 0 else ""
        self.line(f"{state.upper()}{who}", 31)
        rows = [
            ("what", failure.reason),
            ("where", ", ".join(where) or "before the first step, or unknown (record=off)"),
        ]
        if failure.victims:
            rows.append(("then", f"{ranks_spoken(failure.victims)} ended as a consequence"))
        if failure.log:
            rows.append(("log", str(typed(paths.root / failure.log))))
        self.fields(rows)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:  # Closed: further output is discarded, including what the interpreter flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@dataclass(eq=False)
class Follower:
    """Follows the logs of this machine's ranks on a thread while the agent waits for the ranks."""

    paths: RunPaths
    console: Console
    nproc: int
    attempt: int
    exit_codes: dict[int, dict[int, int]]
    """Of the ranks that failed first, by attempt; filled by the agent."""
    tick: Callable[[], None]

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._offsets: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()
        self.console.end_live()

    def _run(self) -> None:
        rounds = 0
        while not self._stop.wait(POLL_S):
            self._poll()
            rounds += 1
            if rounds % 10 == 0:
                self.tick()

    def _poll(self) -> None:
        if self.paths.logs(self.attempt + 1, 0).exists():
            self._read_all()
            self.attempt += 1
            # The agent waits for the remaining ranks, so all error files exist.
            exit_codes = self.exit_codes.get(self.attempt - 1, {})
            failure, _ = find_failure(self.paths, self.attempt - 1, self.nproc, exit_codes)
            who = f"rank {failure.rank}: " if failure.rank >= 0 else ""
            self.console.line(f"attempt {self.attempt - 1} failed: {who}{failure.reason}")
            self.console.line(f"restarting: attempt {self.attempt}")
            with suppress(OSError, ValueError):  # A full disk: the ranks report it.
                write_json(self.paths.status, replace(read_status(self.paths.status), attempt=self.attempt))
        self._read_all()

    def _read_all(self) -> None:
        for text in self._new_lines(self.paths.logs(self.attempt, 0) / "stdout.log"):
            (self.console.progress if text.endswith(REPLACEABLE) else self.console.line)(text.removesuffix(REPLACEABLE))
        for rank in range(self.nproc):
            for text in self._new_lines(self.paths.logs(self.attempt, rank) / "stderr.log"):
                if text.startswith("dtk: "):
                    self.console.line(f"[rank {rank}] {text.removeprefix('dtk: ')}")

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with open_regular(path) as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read(1 << 20)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + end
        return data[:end].decode("utf-8", "replace").split("\n")[:-1]


def explain(console: Console, paths: RunPaths) -> None:
    """Diagnose the run folder and print the result if a cause was found."""
    if text := explanation(paths, console.live):
        console.rendered(text)


def import_diagnosis() -> None:
    """Import what a diagnosis needs, so that it does not delay one later."""
    with suppress(ImportError):  # `explanation` reports it.
        for module in ("diagnose", "evidence.job.gather", "report.terminal", "report.diagnosis"):
            import_module(f"diagnostics.{module}")
        import_module("diagnostics.causes.registry").collect()


def explanation(paths: RunPaths, terminal: bool, *, always: bool = False) -> str:
    """Return a folder's diagnosis in limited time; empty if it failed, or found no cause and `always` is not set."""

    def run() -> str:
        from diagnostics.contract.errors import DiagnosticsError
        from diagnostics.diagnose import diagnose
        from diagnostics.report.diagnosis import document
        from diagnostics.report.terminal import render

        with suppress(DiagnosticsError):  # No evidence.
            report = diagnose(paths.root)
            if report.root_causes or always:
                columns = shutil.get_terminal_size().columns if terminal else None
                return render(document(report, brief=True), columns=columns, colour=terminal).rstrip("\n")
        return ""

    return bounded("diagnosis", run, LIMIT_S) or ""


NAMED = 5  # Chosen: variables that fit on one line; manifest.json has all.


def banner(console: Console, config: Config, paths: RunPaths, placement: Placement, attempt: int) -> None:
    """Print what was detected and chosen, and why."""
    train, world_size = config.train, placement.world_size
    mesh = config.mesh(world_size)
    plan = config.batch_plan(world_size)
    accumulation = plan.accumulation_steps
    warmup = config.schedule.warmup_steps
    only_warmup = f", all of them warm-up (schedule.warmup_steps={warmup})" if warmup >= train.steps else ""
    again = f" (attempt {attempt})" if attempt else ""
    console.line(f"dtk {config.model.name} under {config.strategy.name}{again}", 36)
    rows = [("strategy", config.strategy.summary())]
    if warning := config.strategy.warning(config.optimizer):
        rows.append(("", f"warning: {warning}"))
    threads = f"{counted(placement.threads, 'CPU thread')} each"
    ranks = f"{world_size} on {placement.device} over {placement.backend}, {threads}"
    rows.append(("ranks", "; ".join((ranks, *placement.reasons))))
    if mesh.dp_size != world_size or mesh.ep > 1:
        divide = f"{counted(mesh.dp_size, 'rank')} along dp_replicate and dp_shard divide the batch"
        rows.append(("mesh", f"{mesh}; {divide}"))
        if warning := tp_warning(config, world_size, placement.nproc):
            rows.append(("", f"warning: {warning}"))
    tokens = config.data.sequence_length
    each = f", {counted(tokens, 'token')} each" if config.data.unit == "token" else ""
    samples = f"{counted(train.global_batch_size, 'sample')} = {counted(mesh.dp_size, 'rank')}"
    micro = f"{accumulation:,} micro-batch{'es' if accumulation != 1 else ''} of {train.micro_batch_size}{each}"
    rows.append(("batch", f"{samples} x {micro}; {counted(train.steps, 'step')}{only_warmup}"))
    parallel = config.parallel
    if parallel.pp > 1:  # A rank idles while the first micro-batch arrives and the last one leaves.
        bubble = parallel.pipeline(accumulation).ideal_bubble
        stages = counted(parallel.pp * parallel.stages_per_rank, "stage")
        pieces = f"{parallel.schedule}, {stages}, micro-batches: {accumulation}"
        rows.append(("pipeline", f"{pieces}; {bubble:.0%} of a step is idle at best (bubble)"))
        if accumulation < parallel.pp:
            enough, batch = 4 * parallel.pp, ""
            most = max(n for n in divisors(plan.samples_per_rank) if n <= enough)
            if most < parallel.pp:
                batch = f" train.global_batch_size={enough * mesh.dp_size}"
            else:
                enough = most
            more = f"with parallel.microbatches={enough}{batch} it is {parallel.pipeline(enough).ideal_bubble:.0%}"
            rows.append(("", f"warning: fewer micro-batches than ranks; {more}"))
    if train.compile:
        in_turn = ", stage after stage" if parallel.pp > 1 else ""
        when = f"in the first step{in_turn}, and for evaluation in the first one"
        rows.append(("compile", f"each block {when}, for minutes if it is large"))
    if config.strategy.offload != "none":
        states = "parameters and optimizer states" if config.strategy.offloads_parameters else "optimizer states"
        nothing = ", where they already are: nothing is saved; strategy.offload_to=nvme moves them to a file"
        on_host = f"host memory{nothing if placement.device == 'cpu' else ''}"
        folder = config.strategy.offload_folder
        rows.append(("offload", f"{states} in {on_host if folder is None else f'a file in {folder}'}"))
    offline = offline_reason(config.tracker)
    tracker = config.tracker.name + (f", offline: {offline}" if offline else "")
    rows.append(("precision", f"{config.precision.name}; record={config.record.level}; tracker={tracker}"))
    rows += _nccl(render(config.nccl, os.environ, paths.root), placement.backend)
    console.fields([*rows, ("run", str(typed(paths.root)))])


def farewell(console: Console, paths: RunPaths, status: Status) -> None:
    """Print which rank failed first and why, if one did, a line on how the run ended, and one with the next command.

    After a user's error nothing follows.
    """
    if status.failure is not None:
        console.failure(status.failure, status.state, paths)
        explain(console, paths)
    if status.exit_code == USER_ERROR:
        return
    for line in keep_effect(paths):
        console.line(line)
    if logs := offline_logs(paths.root):
        console.line(f"wandb was offline; to upload it: {command('sync', *map(typed, logs), name='wandb')}")
    following = command("show", typed(paths.root))
    if status.state == "finished":
        figures, finite = _figures(paths)
        console.line(f"finished{figures}", 32)
        # With record=full the user wants to know where time and memory went, else why a loss is not finite.
        if paths.trace(0).is_file() or not finite:
            following = command("diagnose", typed(paths.root))
    elif status.state == "failed" and status.failure is None:
        at = "" if status.step is None else f" after step {status.step}"
        console.line(f"FAILED{at}: {status.reason}", 31)
    elif status.state == "preempted":
        at = "" if status.step is None else f"stopped at step {status.step}: "
        console.line(f"{at}{status.reason}", 33)
        following = command("run", override("resume", typed(paths.root)))
    console.line(f"next: {following}")


def _nccl(rendered: Rendered, backend: str) -> list[tuple[str, str]]:
    """Return the NCCL variables that are set and the user's overriding values; with gloo only a chosen preset."""
    if backend == "gloo" and rendered.preset == "auto" and set(rendered.variables) <= {"NCCL_DEBUG"}:
        return []
    texts = [f"{name}={value}" for name, value in rendered.variables.items()]
    more = f" and {len(texts) - NAMED} more (manifest.json)" if len(texts) > NAMED + 1 else ""
    text = " ".join(texts[:NAMED] if more else texts)
    rows = [("nccl", f"{rendered.preset}: {text or 'nothing to set'}{more}")]
    for own in rendered.kept:
        where = "" if own.source == ENVIRONMENT else f" in {own.source}"
        rows.append(("", f"your {own.name}={own.value}{where} takes precedence (the preset has {own.preset})"))
    return rows + [("", line) for line in doubts(rendered.variables)]


def _figures(paths: RunPaths) -> tuple[str, bool]:
    """Return loss, speed and peak memory from the summary, if there is one, and whether the loss is finite."""
    try:
        summary = read_json(paths.summary)
        figures, unit = summary["figures"], summary.get("speed_unit", "token")
        memory_gib = figures["peak_memory_bytes"] / 2**30
        loss, speed = figures["loss"], f"{figures['tokens_per_s']:,.0f} {unit}s/s"
        return f": loss {loss:.4f}, {speed}, peak memory {memory_gib:.2f} GiB per rank", math.isfinite(loss)
    except (OSError, ValueError, KeyError, TypeError):
        return "", True
