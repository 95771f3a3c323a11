"""From the request to the report: checks the job, runs the probes, keeps or removes their folders."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import typed
from dtk.compare.statistics import FEWEST
from dtk.config.placement import Placement
from dtk.config.schema import Config, NCCLConfig
from dtk.errors import DtkError, refused
from dtk.tune import candidates as choices, micro
from dtk.tune.candidates import Candidate
from dtk.tune.model import NO_GAIN, TuneReport, clearly_fastest, row_of
from dtk.tune.probe import Trials, terms

STOPPED = "stopped by a signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request as typed."""

    topic: str
    overrides: tuple[str, ...]
    values: tuple[str, ...]
    config_dir: Path | None
    repeats: int
    steps: int
    most: int | None
    """Largest micro-batch size to try."""
    keep: Path | None
    limit_s: float


@dataclass(frozen=True, slots=True)
class _Job:
    config: Config
    placement: Placement


def make(request: Request, show: Callable[[str], None]) -> TuneReport:
    """Run the probes and report; DtkError if the job cannot run or be tuned, or the folder cannot be used."""
    began_s = time.monotonic()
    job = _checked(request)
    candidates = _candidates(request, job)
    sizes = choices.micro_batch_sizes(job.config, job.placement.nproc, request.most) if not candidates else []
    home = Path(tempfile.mkdtemp(prefix="dtk-tune-")) if request.keep is None else request.keep.absolute()
    with refused(f"cannot keep probes in {home}", "choose another folder"):
        home.mkdir(parents=True, exist_ok=True)
    short = terms(request.steps, job.config.schedule.name)
    trials = Trials([*request.overrides, *short], request.config_dir, home, show, began_s + request.limit_s)
    failure = ""
    try:
        try:
            if candidates:
                trials.rounds(candidates, 1, request.repeats)
            else:  # Search, then repeat what fits.
                micro.find_largest(trials, sizes)
                trials.rounds([micro.candidate(n) for n in micro.fitting(trials)], micro.FIRST + 1, request.repeats)
        except (micro.ProbeFailedError, DtkError) as error:
            if not trials.probes:  # The first could not start: the command is refused, and there is nothing to report.
                raise
            failure = str(error)
        except KeyboardInterrupt:
            trials.stopped = STOPPED
        report = _in_turns(trials, candidates, request, job) if candidates else _searched(trials, sizes, request, job)
    finally:
        keeps_runs = request.keep is not None or bool(failure)  # The folder of a failed probe is evidence.
        if not keeps_runs:
            shutil.rmtree(home, ignore_errors=True)
    rows = report.rows if keeps_runs else tuple(replace(row, runs=()) for row in report.rows)
    return replace(
        report,
        rows=rows,
        verdict=f"ended early: {failure}" if failure else report.verdict,
        terms=tuple(short),
        notes=(*report.notes, *([trials.stopped] if trials.stopped else [])),
        kept=str(typed(home)) if keeps_runs else None,
        interrupted=trials.stopped == STOPPED,
        failure=failure,
        seconds=time.monotonic() - began_s,
    )


def _checked(request: Request) -> _Job:
    from dtk.launch.prepare import compose_point, place_point
    from dtk.rank.job import started_by

    if started_by(os.environ) is not None:
        raise DtkError("dtk tune starts its ranks itself", "torchrun or srun started this process", "run it alone")
    key = choices.TUNED[request.topic]
    for text in request.overrides:
        name = text.partition("=")[0]
        if name == "resume" or (name == key and request.topic == "micro_batch_size"):
            why = "it is what is searched" if name == key else "a probe trains from the start"
            raise DtkError(f"{text} is incompatible with dtk tune {request.topic}", why, "drop it")
    point, placement = place_point(compose_point(list(request.overrides), request.config_dir))
    config = point.composed.config
    if config.launcher.name != "local":
        raise DtkError(f"launcher={config.launcher.name} submits jobs", "probes run here", "use launcher=local")
    return _Job(config, placement)


def _candidates(request: Request, job: _Job) -> list[Candidate]:
    """Return the candidates to try in turns; none for micro_batch_size, which is searched."""
    if request.topic == "bucket":
        return choices.buckets(job.config, job.placement.nproc, request.values)
    if request.topic == "wrap":
        return choices.units(job.config, job.placement.nproc, request.values)
    if request.topic == "nccl":
        from dtk.nccl.presets import find_preset

        for name in request.values:  # Before the first probe costs its time.
            _variables(find_preset(name, request.config_dir).config, job.config, job.placement.backend)
        usable = [] if request.values else usable_presets(job.config, job.placement.backend, request.config_dir)
        return choices.presets(job.config.nccl.name, usable, request.values)
    return []


def usable_presets(config: Config, backend: str, config_dir: Path | None) -> list[str]:
    """Return the presets for one node and the user's own that fit the backend, and differ here from each other."""
    from dtk.config.folders import conf_folder
    from dtk.nccl.presets import read_presets
    from dtk.nccl.render import render

    own = conf_folder()
    seen = [_felt(render(config.nccl, os.environ).variables, backend)]
    usable = []
    for name, preset in read_presets(config_dir).items():
        if "tune" not in preset.about and preset.path.is_relative_to(own):
            continue
        with suppress(DtkError):
            variables = _felt(_variables(preset.config, config, backend), backend)
            if variables not in seen:
                seen.append(variables)
                usable.append(name)
    return usable


def _variables(preset: NCCLConfig, config: Config, backend: str) -> dict[str, str]:
    """Return the variables of a preset with the keys that the job sets; raise DtkError if it does not fit here."""
    from dtk.nccl.render import KEYS, check_preset, render
    from dtk.record.manifest import network

    section = replace(preset, **{key: value for key in KEYS if (value := getattr(config.nccl, key)) is not None})
    check_preset(section, backend, os.environ, network()["interfaces"])
    return render(section, os.environ).variables


def _felt(variables: dict[str, str], backend: str) -> dict[str, str]:
    if backend == "nccl":
        return {name: value for name, value in variables.items() if name != "NCCL_DEBUG"}
    return {name: value for name, value in variables.items() if not name.startswith("NCCL_")}


def _searched(trials: Trials, sizes: Sequence[int], request: Request, job: _Job) -> TuneReport:
    rows, fastest = micro.rows(trials)
    taken = micro.choose(rows, fastest)
    verdict = micro.verdict(rows, taken, fastest, sizes[-1] if sizes else 0, up=bool(trials.stopped))
    if trials.stopped == STOPPED:
        # An interrupted search is not a result, and neither is its fastest size.
        taken, verdict = None, "stopped before the search had ended: nothing is recommended"
    rule = "of the sizes indistinguishable from the fastest, the smallest is taken: it leaves the most memory"
    notes = () if taken is None else (rule,)
    return _report(request, job, rows=tuple(rows), reference=fastest, take=taken, verdict=verdict, notes=notes)


def _in_turns(trials: Trials, candidates: Sequence[Candidate], request: Request, job: _Job) -> TuneReport:
    present = candidates[0]
    reference = trials.probes.get(present, {})
    tried = [candidate for candidate in candidates if candidate in trials.probes]
    rows = tuple(row_of(c, trials.probes[c], None if c == present else reference) for c in tried)
    best = clearly_fastest(rows)
    gains = [row.gain for row in rows if row.gain is not None]
    if best is not None and best.gain is not None:
        gain = best.gain
        speed = f"{gain.median:.2f}x the tokens/s of {present.override} ({gain.low:.2f} - {gain.high:.2f})"
        verdict = f"use {best.candidate.override}: {speed}"
    elif any(gain.low is not None for gain in gains):
        verdict = f"{NO_GAIN}: keep {present.override}"
    elif gains:
        verdict = f"too few repeats for an interval: use --repeats {FEWEST}"
    else:
        verdict = f"nothing could be compared with {present.override}"
    several = f"{len(rows) - 1} candidates: each interval is a 95% one, so confirm a narrow gain by running it again"
    take, notes = None if best is None else best.candidate, (several,) if len(rows) > 2 else ()
    return _report(request, job, rows=rows, reference=present, take=take, verdict=verdict, notes=notes)


def _report(request: Request, job: _Job, **values: Any) -> TuneReport:
    """Return a report of this job with these values; `make` adds how the trials went."""
    topic, typed_job, place = request.topic, request.overrides, job.placement
    return TuneReport(topic=topic, job=typed_job, terms=(), world_size=place.nproc, device=place.device, **values)
