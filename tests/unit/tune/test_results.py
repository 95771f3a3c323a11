"""From probes to a verdict: gains in pairs, memory told from other failures, nothing claimed that noise could be."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from diagnostics.report.jsonform import text
from diagnostics.report.terminal import render
from dtk.commands.main import main
from dtk.tune import micro
from dtk.tune.candidates import Candidate
from dtk.tune.make import STOPPED, Request, _in_turns, _Job, _searched
from dtk.tune.model import TuneReport, as_json
from dtk.tune.probe import Probe, _read, terms
from dtk.tune.report import document
from dtk.tune.trials import Trials

MIB = 2**20


def probe(tokens_per_s: float | None = None, state: str = "finished", reason: str = "", mib: float = 100.0) -> Probe:
    return Probe(Path("run"), state, reason, tokens_per_s, mib * MIB if tokens_per_s else None)


def trials(**values: list[Probe]) -> Trials:
    """`b25=[...]`: candidate with value 25 and its probes in order of rounds."""
    made = Trials([], None, Path(), lambda text: None, 0.0)
    for name, probes in values.items():
        candidate = Candidate("strategy.bucket_cap_mb", name[1:], present=name == "b25")
        made.probes[candidate] = dict(enumerate(probes, 1))
    return made


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


def turned(made: Trials) -> TuneReport:
    request = asked_for("bucket")
    return _in_turns(made, list(made.probes), request, _Job(None, Place()))  # type: ignore[arg-type]


def test_a_gain_beyond_noise_is_taken() -> None:
    """The machine slows down from round to round; within each, 100 MiB is a fifth faster."""
    made = turned(
        trials(
            b25=[probe(1000.0), probe(800.0), probe(600.0)],
            b1=[probe(995.0), probe(810.0), probe(598.0)],
            b100=[probe(1200.0), probe(961.0), probe(719.0)],
        )
    )
    assert made.take is not None and made.take.override == "strategy.bucket_cap_mb=100"
    assert made.verdict.startswith("take strategy.bucket_cap_mb=100: 1.20x the tokens/s of strategy.bucket_cap_mb=25")
    shown = render(document(made), columns=None, colour=False)
    assert "run strategy=ddp strategy.bucket_cap_mb=100\n" in shown
    assert "no gain that can be told from noise" in shown or "no loss that can be told from noise" in shown
    data = json.loads(text(as_json(made)))
    assert data["take"] == "strategy.bucket_cap_mb=100" and data["candidates"][0]["gain"] is None
    assert data["candidates"][2]["gain"]["low"] > 1


def test_noise_is_no_gain() -> None:
    made = turned(trials(b25=[probe(1000.0), probe(800.0)] * 2, b1=[probe(1300.0), probe(700.0)] * 2))
    assert made.take is None
    assert made.verdict == "no gain that can be told from noise: keep strategy.bucket_cap_mb=25"
    two = turned(trials(b25=[probe(1000.0)] * 2, b1=[probe(1500.0)] * 2))
    assert two.take is None and two.rows[1].gain_told == "too few repeats to tell"
    assert two.verdict == "too few repeats to tell; 3 make an interval: --repeats 3"
    alone = turned(trials(b25=[OOM], b1=[probe(1500.0)] * 3))
    assert alone.take is None and alone.verdict == "nothing could be compared with strategy.bucket_cap_mb=25"


def test_slower_is_not_taken_and_a_failure_does_not_cost_the_rest() -> None:
    slower = [probe(500.0), probe(501.0), probe(499.0)]
    made = turned(
        trials(b25=[probe(1000.0), probe(999.0), probe(1001.0)], b1=slower, b9=[probe(state="hung", reason="a stall")])
    )
    assert [one.gain_told for one in made.rows] == ["", "slower", ""]
    assert made.rows[2].ended == "hung: a stall" and made.take is None and made.measured


def sizes(**values: list[Probe]) -> Trials:
    made = Trials([], None, Path(), lambda text: None, 0.0)
    made.probes = {micro.candidate(int(name[1:])): dict(enumerate(probes, 1)) for name, probes in values.items()}
    return made


OOM = probe(state="oom", reason="RuntimeError: can't allocate memory")


def test_the_fastest_micro_batch_or_a_smaller_one_that_is_as_fast() -> None:
    clear = sizes(
        m1=[probe(100.0), probe(101.0), probe(99.0)],
        m4=[probe(300.0), probe(301.0), probe(299.0)],
        m8=[probe(200.0), probe(201.0), probe(199.0)],
        m16=[OOM],
    )
    rows, fastest = micro.rows(clear)
    taken = micro.choose(rows, fastest)
    assert taken == fastest == micro.candidate(4)
    told = micro.verdict(rows, taken, fastest, 32, up=False)
    assert told == "take train.micro_batch_size=4; train.micro_batch_size=8 is the largest that fits"
    assert [one.ended for one in rows] == ["finished"] * 3 + ["out of memory"]
    alike = sizes(
        m2=[probe(300.0), probe(290.0), probe(310.0)],
        m4=[probe(301.0), probe(311.0), probe(292.0)],
        m1=[probe(100.0), probe(101.0), probe(99.0)],
    )
    rows, fastest = micro.rows(alike)
    assert fastest == micro.candidate(4)
    taken = micro.choose(rows, fastest)
    assert taken == micro.candidate(2), "as fast as noise can tell, and leaves more memory"
    told = micro.verdict(rows, taken, fastest, 4, up=False)
    assert told.endswith(
        "the largest valid one, and it fits, train.micro_batch_size=4 has no gain that can be told from noise"
    )


def test_nothing_fits() -> None:
    rows, fastest = micro.rows(sizes(m1=[OOM]))
    assert micro.choose(rows, fastest) is None
    assert micro.verdict(rows, None, fastest, 8, up=False) == "not even the smallest micro-batch fits"


@pytest.mark.parametrize(
    ("state", "reason", "memory"),
    [
        ("oom", "OutOfMemoryError: CUDA out of memory", True),
        ("failed", "MemoryError: ", True),
        ("failed", "RuntimeError: std::bad_alloc", True),
        ("failed", "killed by SIGKILL (the kernel does this when memory runs out: see dmesg)", True),
        ("failed", "ValueError: bad batch", False),
        ("hung", "rank 1 waits", False),
        ("preempted", "stopped by a signal", False),
        ("finished", "", False),
    ],
)
def test_memory_is_told_by_the_status_of_the_run(tmp_path: Path, state: str, reason: str, memory: bool) -> None:
    paths = RunPaths(tmp_path / "run")
    failure = Failure(rank=1, reason=reason) if state in ("oom", "failed", "hung") else None
    write_json(paths.status, Status(state=state, reason="", failure=failure))  # type: ignore[arg-type]
    figures = {"tokens_per_s": 12.5, "peak_memory_bytes_per_rank": [3, 7, 5]}
    write_json(paths.summary, {"figures": figures})
    made = _read(paths.root)
    assert made.out_of_memory is memory
    assert made.fits is (state == "finished")
    assert (made.tokens_per_s, made.peak_memory_bytes) == (12.5, 7)


def test_a_candidate_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        tried.append(overrides[-1])
        return probe(state="failed", reason="ValueError") if overrides[-1].endswith("=2") else probe(1.0)

    monkeypatch.setattr("dtk.tune.trials.probe", run)
    made = Trials([], None, Path(), lambda text: None, float("inf"))
    made.rounds([micro.candidate(1), micro.candidate(2), micro.candidate(4)], 1, 3)
    assert [text[-1] for text in tried] == list("1241414"), "in turns"
    assert not made.stopped


def test_no_probe_starts_when_the_time_is_up() -> None:
    made = Trials([], None, Path(), lambda text: None, 0.0)
    made.rounds([micro.candidate(1)], 1, 3)
    assert made.stopped.startswith("the time is up") and not made.probes
    assert micro.find_largest(made, [1, 2]) is None


def test_a_short_run_fits_every_schedule() -> None:
    assert "schedule.warmup_steps=10" in terms(10, "wsd")
    assert not any(text.startswith("schedule") for text in terms(10, "cosine"))


def test_a_search_that_was_stopped_recommends_nothing() -> None:
    made = sizes(m1=[probe(100.0)], m2=[probe(200.0)])
    made.stopped = STOPPED
    request = asked_for("micro_batch_size")
    report = _searched(made, [1, 2, 4], request, _Job(None, Place()))  # type: ignore[arg-type]
    assert report.take is None and report.verdict == "stopped before the search had ended: nothing is recommended"
    shown = render(document(report), columns=None, colour=False)
    assert "take" not in shown and "dtk run" not in shown
    made.stopped = ""
    assert _searched(made, [1, 2, 4], request, _Job(None, Place())).take == micro.candidate(2)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_called_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second probe is interrupted; the first one's figure is shown, and no more made of it."""
    count = 0

    def run(overrides: list[str], config_dir: object, home: object) -> Probe:
        nonlocal count
        count += 1
        if count == 2:
            os.kill(os.getpid(), number)
            time.sleep(5)
        return probe(100.0)

    monkeypatch.setattr("dtk.tune.trials.probe", run)
    job = ["experiment=smoke", "strategy=single", "train.global_batch_size=8", f"runs_folder={tmp_path}"]
    assert main(["tune", "micro_batch_size", *job, "--json"]) == 130
    made = json.loads(capsys.readouterr().out)
    assert made["take"] is None and made["notes"] == ["stopped by a signal"] and len(made["candidates"]) == 1
