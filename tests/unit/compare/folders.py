"""Run folders as dtk writes them, with the figures that a test wants."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.artifacts import RunPaths, State, Status, write_json
from diagnostics.report import html, markdown, terminal
from dtk.compare.model import Cell, Check, Comparison
from dtk.compare.report import document
from tests.traits import recorded_traits

CONFIG: dict[str, Any] = {
    "model": {"name": "gpt2_tiny", "architecture": "gpt", "width": 128},
    "data": {"name": "stdlib", "sequence_length": 128},
    "strategy": {"name": "ddp", "bucket_cap_mb": 25.0},
    "precision": {"name": "fp32", "compute_dtype": "float32", "reduce_dtype": "float32", "tf32": False},
    "optimizer": {"name": "adamw", "lr": 0.0006, "fused": "auto"},
    "schedule": {"name": "cosine", "warmup_steps": 5},
    "train": {"steps": 12, "global_batch_size": 8, "micro_batch_size": 4, "clip_norm": 1.0},
    "record": {"level": "light", "profile_start": 3, "profile_steps": 2},
    "launcher": {"name": "local", "device": "auto", "master_port": 0},
    "fault": {"name": "none"},
    "seed": 1234,
    "runs_folder": "/somewhere",
}
DATA = {"name": "stdlib", "sha256": "1bb0", "tokenizer": "byte", "train_samples": 89948, "source": "text"}
PARITY = {
    "schema_version": 1,
    "initial_weights_hash": "54022add1e667428",
    "master_dtype": "float32",
    "compute_dtype": "float32",
    "reduce_dtype": "float32",
}
GATHERED = (
    {"op": "all_gather", "group": "dp_shard", "count": 24, "size_bytes": 24 * 28 << 20, "sent_bytes": 1},
    {"op": "reduce_scatter", "group": "dp_shard", "count": 13, "size_bytes": 13 << 20, "sent_bytes": 1},
    {"op": "all_reduce", "group": "dp_shard", "count": 1, "size_bytes": 4, "sent_bytes": 4},
)
REDUCED = ({"op": "all_reduce", "group": "dp", "count": 2, "size_bytes": 4 << 20, "sent_bytes": 4 << 20},)
START_S = 1_795_000_000.0


def losses(steps: int, scale: float = 1.0) -> list[float]:
    return [scale * (5.4 - 0.1 * step) for step in range(steps)]


def make_run(
    runs: Path,
    name: str,
    *,
    change: dict[str, Any] | None = None,
    world_size: int = 2,
    times_s: Sequence[float] | float = 0.1,
    loss: Sequence[float] | None = None,
    parity: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    state: State = "finished",
    reason: str = "",
    memory_bytes: int = 400 << 20,
    traffic: Sequence[dict[str, Any]] = REDUCED,
    samples: Sequence[int] | None = None,
    log_every: int = 1,
    minute: int = 0,
    gpu: str = "",
) -> Path:
    """A run folder.

    Args:
        change: dotted key -> value, of the configuration.
        times_s: of each step, or of all of them.
        parity: what differs in parity.json; an empty mapping removes the file.
    """
    config = copy.deepcopy(CONFIG)
    for key, value in (change or {}).items():
        section, _, rest = key.partition(".")
        if rest:
            config[section][rest] = value
        else:
            config[section] = value
    paths = RunPaths(runs / name)
    paths.root.mkdir(parents=True)
    steps = config["train"]["steps"]
    times = [times_s] * steps if isinstance(times_s, float) else list(times_s)
    tokens = config["train"]["global_batch_size"] * config["data"]["sequence_length"]
    paths.config.write_text(yaml.safe_dump(config))
    paths.overrides.write_text("[]\n")
    about = _manifest(name, world_size, {**DATA, **(data or {})}, minute, gpu)
    write_json(paths.manifest, {**about, **recorded_traits(config["strategy"]["name"])})
    write_json(paths.status, Status(state=state, reason=reason, step=len(times), started="2026-11-21T20:00:00+00:00"))
    if parity != {}:
        write_json(paths.parity, {**PARITY, **(parity or {})})
    write_json(paths.plan, {"schema": "dtk.plan/1", "traffic": list(traffic)})
    if state == "finished":
        write_json(paths.summary, {"schema_version": 1, "figures": {"parameters": 858880}})
    lines = _metrics(times, loss or losses(len(times)), samples or range(1, len(times) + 1), tokens, log_every)
    for line in lines:
        line["peak_memory_bytes"] = memory_bytes
        line["communicated_bytes_per_step"] = sum(transfer["size_bytes"] for transfer in traffic)
    if lines:
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths.root


def _manifest(name: str, world_size: int, data: dict[str, Any], minute: int, gpu: str) -> dict[str, Any]:
    gpus = [{"name": gpu}] * world_size if gpu else None
    return {
        "schema_version": 1,
        "run_id": name,
        "created": f"2026-11-21T20:{minute:02d}:00+00:00",
        "host": "elsewhere",
        "git": {"commit": "0123456789abcdef", "diff_sha256": None},
        "versions": {"torch": "2.13.0"},
        "hardware": {"cpu": "CPU", "gpus": gpus},
        "topology": {"world_size": world_size, "nodes": 1},
        "data": data,
    }


def _metrics(
    times: Sequence[float], loss: Sequence[float], samples: Sequence[int], tokens: int, log_every: int
) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    now_s, last = START_S, 0
    for n, (time_s, value) in enumerate(zip(times, loss, strict=True), 1):
        now_s += time_s
        if n == 1 or n % log_every == 0 or n == len(times):
            window = times[last:n]
            lines.append(
                {
                    "time_s": now_s,
                    "attempt": 0,
                    "step": n,
                    "loss": value,
                    "step_time_s": sum(window) / len(window),
                    "tokens": n * tokens,
                    "mfu": None,
                    "samples_hash": f"{sum(samples[last:n]):016x}",
                }
            )
            last = n
    return lines


def as_page(comparison: Comparison) -> str:
    return html.render(document(comparison))


def as_markdown(comparison: Comparison) -> str:
    return markdown.render(document(comparison))


def in_pipe(comparison: Comparison, columns: int | None = None) -> str:
    return terminal.render(document(comparison), columns=columns, colour=False)


FSDP = {"strategy": {"name": "fsdp"}}


def cell(comparison: Comparison, key: str, variant: str) -> Cell:
    return next(c for figure in comparison.figures if figure.key == key for c in figure.cells if c.variant == variant)


def median(comparison: Comparison, key: str, variant: str) -> float:
    estimate = cell(comparison, key, variant).estimate
    assert estimate is not None
    return estimate.median


def check(comparison: Comparison, key: str) -> Check:
    return next(item for item in comparison.checks if item.key == key)


def telemetry(folder: Path, *samples: dict[str, Any]) -> None:
    (folder / "telemetry").mkdir()
    lines = [{"kind": "about", "schema_version": 1}]
    lines += [{"kind": "sample", "time_s": START_S + 0.3 * (n + 1), **sample} for n, sample in enumerate(samples)]
    (folder / "telemetry" / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def measures(
    compute: float, communication: float, exposed: float, waiting: float | None, steps: int = 2
) -> dict[str, Any]:
    """As the overlap detector writes them, of two ranks that differ by a tenth around these means per step."""
    ranks = {}
    for rank, factor in enumerate((0.9, 1.1)):
        values = {
            "compute_ms": compute,
            "communication_ms": communication,
            "overlapped_ms": communication - exposed,
            "exposed_ms": exposed,
            "memory_ms": 0.0,
            "idle_ms": 10.0,
            "wall_ms": compute + exposed + 10.0,
        }
        ranks[rank] = {name: value * factor * steps for name, value in values.items()}
        ranks[rank]["waiting_exposed_ms"] = None if waiting is None else waiting * factor * steps
        ranks[rank]["steps"] = [{"step": n} for n in range(steps)]
        ranks[rank]["groups"] = {"dp": {"exposed_ms": exposed * factor * steps}}
    return {"overlap": {"steps": steps, "ranks": ranks}}
