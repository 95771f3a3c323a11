"""The first and last lines of a run: what was chosen and why, how it ended, and what to type next."""

import math
import os

from diagnostics.contract.artifacts import RunPaths, Status
from diagnostics.contract.files import read_json
from diagnostics.contract.formatting import counted
from diagnostics.contract.invocation import command, override, typed
from diagnostics.contract.mesh import divisors
from dtk.config.placement import Placement, tp_warning
from dtk.config.schema import Config
from dtk.errors import USER_ERROR
from dtk.launch.console import Console, explain
from dtk.nccl.effect import keep_effect
from dtk.nccl.lint import doubts
from dtk.nccl.render import ENVIRONMENT, Rendered, render
from dtk.record.trackers import offline_logs, offline_reason

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
