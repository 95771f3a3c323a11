"""Probes and trials as short runs leave them."""

from pathlib import Path

from dtk.tune import micro
from dtk.tune.candidates import Candidate
from dtk.tune.make import Request, _in_turns, _Job
from dtk.tune.model import TuneReport
from dtk.tune.probe import Probe, Trials

MIB = 2**20


def probe(tokens_per_s: float | None = None, state: str = "finished", reason: str = "", mib: float = 100.0) -> Probe:
    return Probe(Path("run"), state, reason, tokens_per_s, mib * MIB if tokens_per_s else None)


def trials(**values: list[Probe]) -> Trials:
    """`b25=[...]`: candidate with value 25 and its probes in order of rounds."""
    result = Trials([], None, Path(), lambda text: None, 0.0)
    for name, probes in values.items():
        candidate = Candidate("strategy.bucket_cap_mb", name[1:], present=name == "b25")
        result.probes[candidate] = dict(enumerate(probes, 1))
    return result


class Place:
    nproc, device = 2, "cpu"


def asked_for(topic: str) -> Request:
    return Request(
        topic=topic,
        overrides=("strategy=ddp",),
        values=(),
        config_dir=None,
        repeats=3,
        steps=10,
        most=None,
        keep=None,
        limit_s=1.0,
    )


def turned(trials: Trials) -> TuneReport:
    request = asked_for("bucket")
    return _in_turns(trials, list(trials.probes), request, _Job(None, Place()))  # type: ignore[arg-type]


def sizes(**values: list[Probe]) -> Trials:
    trials = Trials([], None, Path(), lambda text: None, 0.0)
    trials.probes = {micro.candidate(int(name[1:])): dict(enumerate(probes, 1)) for name, probes in values.items()}
    return trials


OOM = probe(state="oom", reason="RuntimeError: can't allocate memory")
