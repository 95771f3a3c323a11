"""Steps that became slower for good, or stopped, and what looks like it: pauses, warm-up, restarts, several jobs."""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import accumulate, chain, zip_longest
from pathlib import Path

import pytest

from diagnostics.analysis.printed_steps import Jump, printed_steps
from diagnostics.analysis.step_times import Silence, silence, slower
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.report import terminal
from diagnostics.report.diagnosis import document
from tests.trace_generator import write
from tests.trace_scenarios import SCENARIOS

START_S = 1_790_000_000.0


def noisy(level_s: float, count: int, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [level_s * chance.lognormvariate(0, 0.05) for _ in range(count)]


def dated(
    took_s: Iterable[float], form: str = "{at} - INFO - step {n} loss 2.5", first: int = 1, after_s: float = 0
) -> list[str]:
    """Return one line per step, which begins with its date."""
    at_s, lines = START_S + after_s, []
    for n, step_s in enumerate(took_s, first):
        at_s += step_s
        at = datetime.fromtimestamp(at_s, UTC)
        lines.append(
            form.format(at=f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}", n=n, s=step_s, ms=1000 * step_s)
        )
    return lines


def jump_of(folder: Path, lines: Iterable[str]) -> Jump | None:
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return slower(printed_steps(gather(folder, Limits())))


MEGATRON = (
    " iteration {n:8}/ 9000 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 2.5E+00 | loss scale: 1.0 | "
    "number of skipped iterations: 0 |"
)
SLOW = [*noisy(0.8, 60), *noisy(3.1, 40, 1)]


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("{at} - INFO - step {n} loss 2.5", "step 61"),
        ("step {n} | loss: 2.5 | dt: {ms:.1f}ms", "step 61"),
        ("iter {n}: loss 2.5, time {ms:.2f}ms, mfu 30%", "step 61"),
        (MEGATRON, "step 61"),
        ("{at} - mmdet - INFO - Epoch [1][{n}/100]\tlr: 2e-02, time: {s:.3f}, data_time: 0.01, loss: 1.1", "step 61"),
        ("{at} - INFO - Train Epoch: 1 [{n}/100 ({n}%)]\tLoss: 2.5", "epoch 1.61"),
        ("{n}%|##   | {n}/100 [00:09<00:09,  {s:.2f}s/it, loss=2.5]", "step 61"),
        ("{n}/{n} [=======] - 3s {ms:.0f}ms/step - loss: 2.5", "line 61"),
        ("{n}%|##   | {n}/100 [00:09<00:09,  {s:.2f}s/it]\r\n{{'loss': 2.5, 'epoch': 0.{n:02}}}", "step 61"),
    ],
)
def test_steps_that_became_slower(tmp_path: Path, form: str, where: str) -> None:
    change = jump_of(tmp_path, dated(SLOW, form))
    assert change is not None and change.where == where
    assert (change.before, change.after) == pytest.approx((0.8, 3.1), rel=0.1) or where.startswith("epoch")
    assert change.after == pytest.approx(3.1 / 0.8 * change.before, rel=0.1)


def test_records_of_steps_that_became_slower(tmp_path: Path) -> None:
    records = [f'{{"step": {n}, "loss": 2.5, "step_time_s": {step_s}}}' for n, step_s in enumerate(SLOW, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(records) + "\n")
    case = slower(printed_steps(gather(tmp_path, Limits())))
    assert case is not None and case.line == 61
    (tmp_path / "metrics.jsonl").write_text("\n".join(records[:60]) + "\n")
    assert slower(printed_steps(gather(tmp_path, Limits()))) is None


def test_steps_that_became_slower_little_by_little(tmp_path: Path) -> None:
    change = jump_of(tmp_path, dated(step_s * (1 + n / 50) for n, step_s in enumerate(noisy(1.0, 200))))
    assert change is not None and change.after > 2 * change.before and not change.at_once
    assert "the time of a step rose from 1" in diagnose(tmp_path).statement


@pytest.mark.parametrize("every", [10, 50])
def test_dates_of_whole_seconds_are_enough(tmp_path: Path, every: int) -> None:
    lines = dated([*noisy(0.2, 4000), *noisy(0.7, 4000)])
    change = jump_of(tmp_path, (line.replace(line[19:23], "") for line in lines[::every]))
    assert change is not None and int(change.where.removeprefix("step ").replace(",", "")) in range(3900, 4300)
    assert (change.before, change.after) == pytest.approx((0.2, 0.7), rel=0.1)


def with_pauses(took_s: list[float], every: int, pause_s: float) -> list[float]:
    return [step_s + pause_s * (n % every == 0) for n, step_s in enumerate(took_s, 1)]


def in_turn(*logs: list[str]) -> Iterator[str]:
    return (line for line in chain.from_iterable(zip_longest(*logs)) if line is not None)


def ranks(took_s: list[float]) -> list[str]:
    """Return the lines of four ranks, which are up to a step apart."""
    chance = random.Random(3)
    lines = [
        (line[:23], chance.random(), f"[rank{rank}]: {line}")
        for rank in range(4)
        for line in dated(took_s, after_s=0.3 * rank)
    ]
    return [line for *_, line in sorted(lines)]


HEALTHY: dict[str, Callable[[], Iterable[str]]] = {
    "noise": lambda: dated(noisy(0.8, 400)),
    "heavy tails": lambda: dated(0.8 * random.Random(1).paretovariate(1.5) for _ in range(400)),
    "batches of different sizes": lambda: dated(random.Random(n).choice([0.4, 0.8, 1.6]) for n in range(300)),
    "warm-up": lambda: dated([60.0, 20.0, 9.0, *noisy(0.8, 200)]),
    "warm-up that takes half of the log": lambda: dated([*noisy(3.0, 60), *noisy(0.8, 60)]),
    "evaluations": lambda: dated(with_pauses(noisy(0.8, 400), 25, 90.0)),
    "evaluations from the middle on": lambda: dated([*noisy(0.8, 200), *with_pauses(noisy(0.8, 200), 10, 60.0)]),
    "checkpoints in steps that are printed": lambda: dated(with_pauses(noisy(0.8, 400), 50, 90.0), MEGATRON),
    "a slow phase that passes": lambda: dated([*noisy(0.8, 100), *noisy(4.0, 50), *noisy(0.8, 100)]),
    "a few slow steps at the end": lambda: dated([*noisy(0.8, 200), *noisy(4.0, 5)]),
    "a restart that is slower": lambda: [
        *dated(noisy(0.8, 100)),
        "Loading checkpoint from step-100",
        *dated(noisy(3.0, 100), first=101, after_s=600),
    ],
    "two jobs one after the other": lambda: [*dated(noisy(0.8, 100)), *dated(noisy(3.0, 100), after_s=900)],
    "two jobs by turns": lambda: in_turn(dated(noisy(0.8, 100), first=1000), dated(noisy(3.0, 100))),
    "two jobs by turns, one of which ends": lambda: in_turn(
        dated(noisy(0.8, 60), first=100), dated(noisy(3.0, 150), first=30)
    ),
    "four ranks": lambda: ranks(noisy(0.8, 100)),
    "epochs": lambda: dated(noisy(0.8, 100), "{at} - INFO - Epoch [1][{n}/100] loss: 2.5")
    + dated(noisy(0.8, 100), "{at} - INFO - Epoch [2][{n}/100] loss: 2.5", after_s=300),
    "bars of evaluations": lambda: chain.from_iterable(
        [*dated(noisy(0.1, 50), "5%|#| {n}/50 [00:01<00:02, {s:.2f}s/it]"),
         *dated(noisy(0.8, 20), "9%|#| {n}/400 [00:01<00:02, {s:.2f}s/it]\n{{'loss': 2.5, 'epoch': 0.5}}", 20 * at)]
        for at in range(1, 15)
    ),
    "the time since the start": lambda: (f"step {n} | loss 2.5 | time {12.4 * n:.1f}s" for n in range(1, 120)),
    "the time since the epoch began": lambda: (
        f"Epoch: [{n // 40}][{n % 40}/40]  loss: 2.5  Time: {3.1 * (n % 40):.1f}s" for n in range(160)
    ),
    "larger batches from the middle on": lambda: (
        line.replace("| lm loss", f"| global batch size: {256 if n < 60 else 512:5} | lm loss")
        for n, line in enumerate(dated(SLOW, MEGATRON))
    ),
    "no times": lambda: (f"step {n} loss 2.5" for n in range(300)),
    "equal times": lambda: dated([1.0] * 300),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_steps_that_did_not_become_slower_for_good(tmp_path: Path, name: str) -> None:
    assert jump_of(tmp_path, HEALTHY[name]()) is None


def test_four_ranks_that_became_slower(tmp_path: Path) -> None:
    change = jump_of(tmp_path, ranks(SLOW))
    assert change is not None and change.where in ("step 60", "step 61", "step 62")


def test_the_first_screen_says_since_when_steps_are_slower(tmp_path: Path) -> None:
    assert jump_of(tmp_path, dated(SLOW)) is not None
    report = diagnose(tmp_path)
    words = "no cause is confirmed, and steps took 797 ms until step 61 and 3.12 s since then"
    assert (report.outcome, report.statement.startswith(words)) == ("undecided", True)


@pytest.mark.parametrize(("level_s", "outcome"), [(0.8, "healthy"), (3.1, "undecided")])
def test_traces_of_good_steps_say_nothing_of_later_ones_that_are_slower(
    tmp_path: Path, level_s: float, outcome: str
) -> None:
    write(next(each for each in SCENARIOS if each.name == "ddp").build(), tmp_path)
    jump_of(tmp_path, dated([*noisy(0.8, 60), *noisy(level_s, 40, 1)]))
    report = diagnose(tmp_path)
    assert (report.outcome, "until step 61" in report.statement) == (outcome, outcome == "undecided")
    assert "exposed communication" in (report.figures or report.statement)


TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT {at:%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***"
CANCELLED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT {at:%Y-%m-%dT%H:%M:%S} ***"
TORCHRUN = (
    "W{at:%m%d %H:%M:%S}.194000 84 torch/distributed/elastic/agent/server/api.py:719] "
    "Received 15 death signal, shutting down workers"
)
DEEPSPEED = "[{at:%Y-%m-%d %H:%M:%S},123] [INFO] [launch.py:319:sigkill_handler] Main process received SIGTERM, exiting"
NODE = "srun: error: *** STEP 7.0 ON n1 CANCELLED AT {at:%Y-%m-%dT%H:%M:%S} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"


SILENT_S = 2.5 * 3600 + 440.0  # No whole number of quarters of an hour, by which zones differ.


def stopped(folder: Path, took_s: list[float], silent_s: float, form: str = TIME_LIMIT, *more: str) -> Silence | None:
    """Return what is found in a log of steps that ends after a silence."""
    end_s = START_S + sum(took_s) + silent_s
    lines = [*dated(took_s), *more, form.format(at=datetime.fromtimestamp(end_s, UTC))]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    os.utime(folder / "train.log", (end_s, end_s))  # Dates of torchrun have no year.
    return silence(gather(folder, Limits()))


@pytest.mark.parametrize("form", [TIME_LIMIT, CANCELLED, TORCHRUN, DEEPSPEED])
def test_a_job_that_printed_nothing_for_hours_before_it_was_stopped(tmp_path: Path, form: str) -> None:
    found_silence = stopped(tmp_path, with_pauses(noisy(0.8, 100), 25, 90.0), SILENT_S, form)
    assert found_silence is not None and (found_silence.line, found_silence.where) == (100, "step 100")
    assert found_silence.silent_s == pytest.approx(SILENT_S, abs=1.5)
    assert found_silence.longest_s == pytest.approx(91, abs=1)
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert report.waiting is not None and report.waiting.silence == found_silence
    assert not report.suspicions, "nothing names several ranks, so no call of them"
    text = terminal.render(document(report), columns=200, colour=False)
    assert "the job had printed nothing for 9,4" in text and "nothing after step 100 (line 100 of train.log)" in text


def moving(until_s: float, every_s: float, words: str) -> list[str]:
    """Return dated lines about other work behind 100 steps of 8 s."""
    return dated([every_s] * int(until_s / every_s), "{at} INFO " + words, after_s=100 * 8.0 + 60)


def bars(until_s: float) -> list[str]:
    """Return the states of two progress bars, one after the other, that fill a time."""
    half = [f"{n}%|##  | {n}/100 [{n * until_s / 12000:02.0f}:00<09:00, 47.2s/it]" for n in range(101)]
    return [*half, *half]


@pytest.mark.parametrize(
    ("took_s", "silent_s", "more"),
    [
        (noisy(0.8, 100), 20.0, ()),  # Trained until its time was up.
        (noisy(0.8, 100), 200.0, ()),
        (with_pauses(noisy(0.8, 100), 25, 900.0), 1800.0, ()),  # An evaluation takes as long.
        (noisy(200.0, 30), 500.0, ()),
        (noisy(0.8, 5), 7200.0, ()),  # Too few steps to know what is usual.
        (noisy(0.8, 100), 7200.0, ("Training completed.",)),
        (noisy(0.8, 100), -7200.0, ()),  # A scheduler whose clock has another zone.
        (noisy(8.0, 100), SILENT_S, moving(SILENT_S, 60.0, "evaluated batch {n} of 900")),
        (noisy(8.0, 100), SILENT_S, bars(SILENT_S)),
        (noisy(8.0, 100), SILENT_S, [f"predicted {n} of 400" for n in range(300)]),  # Nothing shows until when.
    ],
)  # fmt: skip
def test_a_job_that_was_stopped_as_it_trained(
    tmp_path: Path, took_s: list[float], silent_s: float, more: Iterable[str]
) -> None:
    assert stopped(tmp_path, took_s, silent_s, TIME_LIMIT, *more) is None


@pytest.mark.parametrize(
    ("silent_s", "may_be_zone"),
    [
        (3600.0, True), (7203.0, True), (9000.0, True), (5.5 * 3600 + 4.0, True), (5.75 * 3600, True),
        (900.0, False), (2702.0, False), (5400.0, False), (8100.0, False), (7203.0 + 60, False), (7203.0 - 60, False),
    ],
)  # fmt: skip
def test_a_silence_of_as_long_as_zones_differ_leaves_open_whether_the_job_had_hung(
    tmp_path: Path, silent_s: float, may_be_zone: bool
) -> None:
    found_silence = stopped(tmp_path, noisy(8.0, 100), silent_s)
    assert found_silence is not None and found_silence.may_be_zone == may_be_zone
    report = diagnose(tmp_path)
    assert [(root.cause, root.confidence) for root in report.root_causes] == [("env.job_stopped", 0.6)] * may_be_zone
    text = terminal.render(document(report), columns=200, colour=False)
    assert ("Either its log has dates of another time zone" in text) == may_be_zone
    assert report.waiting is None or report.waiting.silence is None or not may_be_zone


def test_where_steps_went_on_until_the_time_limit_that_is_the_cause(tmp_path: Path) -> None:
    assert stopped(tmp_path, noisy(0.8, 100), 20.0) is None
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["env.job_stopped"]


def test_steps_end_where_a_node_is_lost_and_its_loss_is_noticed_later(tmp_path: Path) -> None:
    assert stopped(tmp_path, noisy(0.8, 100), 1200.0, NODE) is not None
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["env.job_stopped"]


@pytest.mark.parametrize("written_after_days", [0, 90, 150, 300, 700])
def test_a_date_without_a_year_is_of_the_year_that_the_other_lines_state(
    tmp_path: Path, written_after_days: int
) -> None:
    """A log that was copied, or cloned, long after the job; torch's lines have no year."""
    assert stopped(tmp_path, noisy(0.8, 100), 4.0, TORCHRUN) is None
    os.utime(next(tmp_path.iterdir()), 2 * (START_S + written_after_days * 86_400,))
    assert silence(gather(tmp_path, Limits())) is None
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["env.job_stopped"]


@pytest.mark.parametrize("day", ["0314", "1130", "1202"])
def test_dates_without_a_year_are_not_in_the_future_of_the_file(tmp_path: Path, day: str) -> None:
    """Without any year: the twelve months before the file was written, and what another zone adds."""
    lines = (f"I{day} 09:{n // 60:02}:{n % 60:02}.000000 7 train.py:3] step {n} loss 2.0" for n in range(60))
    (path := tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    written_s = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
    os.utime(path, (written_s, written_s))
    (steps,) = (fact.fields["steps"] for fact in gather(tmp_path, Limits()).facts if fact.kind == "steps")
    (series,) = steps.series.values()
    assert {datetime.fromtimestamp(at, UTC).year for at in series.at_s if at == at} == {2026}


def test_a_silence_of_an_earlier_attempt_in_the_same_log_is_none_of_the_last_one(tmp_path: Path) -> None:
    early = [*dated(noisy(0.8, 50)), TIME_LIMIT.format(at=datetime.fromtimestamp(START_S + 50, UTC))]
    (tmp_path / "train.log").write_text("\n".join([*early, *dated(noisy(0.8, 50), first=51, after_s=7200)]) + "\n")
    assert silence(gather(tmp_path, Limits())) is None


def test_a_wait_that_a_watchdog_reported_says_more_than_the_silence_of_the_steps(tmp_path: Path) -> None:
    watchdog = (
        f"[rank1]:[E{datetime.fromtimestamp(START_S + 200, UTC):%m%d %H:%M:%S}.123456 ProcessGroupNCCL.cpp:6] "
        "[Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds"
    )
    assert stopped(tmp_path, noisy(0.8, 100), 1200.0, TORCHRUN, watchdog) is not None
    waiting = diagnose(tmp_path).waiting
    assert waiting is not None and waiting.waits and waiting.silence is None


@pytest.mark.parametrize(
    ("more", "where"),
    [
        (moving(120.0, 60.0, "saving the checkpoint"), "saving the checkpoint"),
        ([*moving(60.0, 60.0, "evaluating"), "50%|##  | 5/10 [05:00<05:00, 60s/it]"], "evaluating"),
    ],
)
def test_a_silence_begins_at_the_last_line_of_whatever_kind(tmp_path: Path, more: list[str], where: str) -> None:
    found_silence = stopped(tmp_path, [8.0] * 100, SILENT_S, TIME_LIMIT, *more)
    assert found_silence is not None and where in found_silence.where
    assert found_silence.silent_s == pytest.approx(SILENT_S - 120 - 60 - (240 if "evaluating" in where else 0), abs=61)
    report = diagnose(tmp_path)
    assert not report.root_causes and where in terminal.render(document(report), columns=200, colour=False)


def test_only_a_job_of_several_ranks_is_suspected_to_wait_in_a_collective(tmp_path: Path) -> None:
    stopped(tmp_path, noisy(0.8, 100), SILENT_S)
    text = (tmp_path / "train.log").read_text()
    (tmp_path / "train.log").write_text("[rank0]: " + text.replace("\n20", "\n[rank0]: 20"))
    report = diagnose(tmp_path)
    assert "hang.conditional_collective" in {each.cause for each in report.suspicions}


@pytest.mark.parametrize(
    ("steps", "stops", "is_silent"),
    [
        ("train.log", "train.log", True),
        ("train.out", "train.err", True),
        ("stdout.log", "stderr.log", True),
        ("job.o77", "job.e77", True),
        ("run-7.log", "slurm.err", True),  # The job is number 7.
        ("run-77.log", "slurm.err", False),
        ("train.log", "slurm-8.out", False),
    ],
)
def test_a_line_stops_only_its_own_job(tmp_path: Path, steps: str, stops: str, is_silent: bool) -> None:
    stopped(tmp_path, noisy(0.8, 100), SILENT_S)
    *lines, last = (tmp_path / "train.log").read_text().splitlines(keepends=True)
    (tmp_path / "train.log").unlink()
    (tmp_path / steps).write_text("".join(lines))
    with (tmp_path / stops).open("a") as file:
        file.write(last)
    assert (silence(gather(tmp_path, Limits())) is not None) == is_silent


def test_a_job_that_ended_well_says_nothing_of_another_one_in_its_folder(tmp_path: Path) -> None:
    stopped(tmp_path, noisy(0.8, 100), SILENT_S)
    (tmp_path / "slurm-8.out").write_text("\n".join([*dated(noisy(0.8, 90)), "Training completed."]))
    found_silence = silence(gather(tmp_path, Limits()))
    assert found_silence is not None and found_silence.file == "train.log"


def test_a_job_that_is_killed_late_was_not_silent_before(tmp_path: Path) -> None:
    took_s = noisy(0.8, 100)
    early = TORCHRUN.format(at=datetime.fromtimestamp(START_S + sum(took_s) + 20, UTC))
    assert stopped(tmp_path, took_s, SILENT_S, TIME_LIMIT, early) is None


def test_steps_are_counted_once_though_several_ranks_print_them(tmp_path: Path) -> None:
    assert jump_of(tmp_path, ranks(noisy(0.8, 100))) is None
    assert printed_steps(gather(tmp_path, Limits())).count == 100


def test_the_time_since_the_start_shows_steps_that_became_slower(tmp_path: Path) -> None:
    since_s = accumulate(SLOW)
    change = jump_of(tmp_path, (f"step {n} | loss 2.5 | time {at_s:.3f}s" for n, at_s in enumerate(since_s, 1)))
    assert change is not None and change.where == "step 61" and change.after == pytest.approx(3.1, rel=0.1)


def test_steps_of_equal_batches_that_became_slower(tmp_path: Path) -> None:
    lines = dated([*noisy(0.4, 50), *SLOW], MEGATRON)
    sizes = (f"| global batch size: {256 if n < 50 else 512:5} | lm loss" for n in range(len(lines)))
    change = jump_of(tmp_path, (line.replace("| lm loss", size) for line, size in zip(lines, sizes, strict=True)))
    assert change is not None and change.where == "step 111"
