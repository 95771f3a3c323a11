"""Printed steps: overflow without end, figures that stay non-finite, and a loss that jumps."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.printed_steps import (
    LEAST_AFTER,
    WINDOW,
    Jump,
    NonFinite,
    Printed,
    jump,
    non_finite_to_the_end,
    printed_steps,
    skipped_to_the_end,
)
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs.steps import Series, Steps

NAN = math.nan


def log(losses: list[float], steps: list[float] | None = None, **columns: list[float]) -> Printed:
    """One line per step; a loss of None was not printed."""
    series = Series()
    for n, loss in enumerate(losses):
        series.lines.append(n + 1)
        series.step.append(n if steps is None else steps[n])
        series.loss.append(loss)
        norms = columns.get("norms")
        series.norm.append(norms[n] if norms else NAN)
        series.scale.append(columns.get("scales", [NAN] * len(losses))[n])
        series.skipped.append(columns.get("skipped", [0.0] * len(losses))[n])
        series.printed.append(columns.get("printed", [3 if norms else 1] * len(losses))[n])  # type: ignore[arg-type]
    return Printed("train.log", Steps(series={"trainer": series}), "trainer")


def course(level: float, count: int, noise: float = 0.01, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [level + chance.uniform(-noise, noise) for _ in range(count)]


def test_a_loss_that_goes_up_at_once_and_stays_there() -> None:
    result = jump(log([*course(2.0, 40), *course(6.0, 20)]))
    assert result is not None and (result.line, result.step, result.steps_after) == (41, 40, 20)
    assert result.before == pytest.approx(2, abs=0.02) and result.after == pytest.approx(6, abs=0.02)
    assert result.norms is None


@pytest.mark.parametrize(
    "losses",
    [
        course(2.0, 60),
        [*course(2.0, 40), 9.0, *course(2.0, 19)],
        [*course(2.0, 40), *course(6.0, LEAST_AFTER - 1)],
        [*course(2.0, 40), *course(2.6, 20)],
        [*course(2.0, 40, noise=1.5), *course(4.0, 20, noise=1.5, seed=1)],
        [*course(2.0, WINDOW - 5), *course(6.0, LEAST_AFTER)],
        [],
    ],
    ids=["flat", "a spike", "too short behind it", "less than half as much again", "noisy", "too short", "nothing"],
)
def test_no_jump(losses: list[float]) -> None:
    assert jump(log(losses)) is None


def test_gradient_norms_before_and_after() -> None:
    losses = [*course(2.0, 40), *course(6.0, 20)]
    result = jump(log(losses, norms=[*[1.0] * 40, *[50.0] * 20]))
    assert result is not None and result.norms == (1.0, 50.0)


def test_a_second_run_in_the_same_log_begins_with_a_high_loss_again() -> None:
    losses = [*course(2.0, 40), *course(9.0, 40)]
    assert jump(log(losses, steps=[*map(float, range(40)), *map(float, range(40))])) is None
    assert jump(log(losses)) is not None


@settings(max_examples=30)
@given(st.integers(WINDOW + 5, 60), st.integers(LEAST_AFTER, 40), st.floats(1.7, 9.0), st.integers(0, 99))
def test_a_planted_jump_is_found_at_its_step(before: int, after: int, factor: float, seed: int) -> None:
    result = jump(log([*course(3.0, before, seed=seed), *course(3.0 * factor, after, seed=seed + 1)]))
    assert isinstance(result, Jump) and result.line == before + 1


@pytest.mark.parametrize(("count", "lasting"), [(LEAST_AFTER // 2, True), (LEAST_AFTER // 2 - 1, False), (1, False)])
def test_a_loss_that_is_not_finite_until_the_log_ends(count: int, lasting: bool) -> None:
    case = non_finite_to_the_end(log([*course(2.0, 30), *[NAN] * count]))
    assert case == NonFinite("loss", 31, count, lasting)
    assert non_finite_to_the_end(log(course(2.0, 30))) is None
    assert non_finite_to_the_end(log([*[NAN] * 20, *course(2.0, 1)])) is None, "it recovered"


def test_a_norm_that_is_not_finite_until_the_log_ends() -> None:
    norms = [*[1.0] * 20, *[math.inf] * 8]
    assert non_finite_to_the_end(log(course(2.0, 28), norms=norms)) == NonFinite("grad_norm", 21, 8, True)
    assert non_finite_to_the_end(log(course(2.0, 28))) is None, "no norm was printed"
    assert non_finite_to_the_end(Printed("x", Steps())) is None


def test_steps_that_are_skipped_until_the_log_ends() -> None:
    skipped = [*[0.0] * 20, *[1.0] * LEAST_AFTER]
    printed = [*[1] * 20, *[0] * LEAST_AFTER]
    case = skipped_to_the_end(log([2.0] * len(skipped), skipped=skipped, printed=printed, scales=[8.0] * 30))
    assert case is not None and (case.line, case.count, case.scale) == (21, LEAST_AFTER, 8.0)
    assert skipped_to_the_end(log([2.0] * 30, skipped=skipped, printed=[1] * 30)) is None, "losses were printed"
    assert skipped_to_the_end(log([2.0] * 29, skipped=skipped[:29], printed=printed[:29])) is None


@pytest.mark.parametrize(
    ("skipped", "printed", "scale", "expected"),
    [
        ([0.0, 0.0, 100.0], [1, 1, 0], 1024.0, (3, 100)),  # Megatron-LM counts the steps of a row.
        ([100.0, 100.0], [0, 0], 1.0, (1, 200)),
        ([17.0], [0], 32768.0, None),  # The search for a first loss scale, from 2 ** 32.
        ([0.0, 0.0, 2.0], [1, 1, 0], 1024.0, None),
    ],
)
def test_steps_that_were_skipped_are_counted(
    skipped: list[float], printed: list[int], scale: float, expected: tuple[int, int] | None
) -> None:
    count = len(skipped)
    case = skipped_to_the_end(log([2.0] * count, skipped=skipped, printed=printed, scales=[scale] * count))
    assert (None if case is None else (case.line, case.count)) == expected


def overflow(scales: list[float], steps: int = 0) -> Printed:
    printed = log([2.0] * steps)
    for n, scale in enumerate(scales):
        printed.steps.overflow_lines.append(100 + n)
        printed.steps.overflow_scales.append(scale)
    return printed


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ([4, 2, 1, 1, 1], (100, 5)),
        ([4, 2, 1, 1], None),
        ([65536, 32768, 16384], None),
        ([32, 16, 8, 4, 2], (100, 5)),  # Cut off before the minimum; gradients of 16,000 are no search of a scale.
        ([64, 32, 16, 8], None),
        ([4096, 2048, 1024, 512, 256], None),
        ([2.0**n for n in range(15, 0, -1)], None),  # A search from the start, however far it goes.
    ],
)
def test_a_loss_scale_that_was_halved_to_its_end(scales: list[float], expected: tuple[int, int] | None) -> None:
    case = skipped_to_the_end(overflow(scales))
    assert (None if case is None else (case.line, case.count)) == expected


def halved(first: float, count: int) -> list[float]:
    return [first / 2**n for n in range(count)]


@pytest.mark.parametrize(
    ("scales", "every", "expected"),
    [
        (halved(65536, 20), 1, (19, 2)),
        ([64.0] * 9 + halved(64, 12), 1, (11, 11)),
        (halved(65536, 18) + [0.0] * 12, 1, (29, 2)),  # As printed with a few digits.
        ([65536 / 1024**n for n in range(4)], 10, (30, 2)),  # Each row stands for ten steps.
        (halved(65536, 16), 1, None),  # It is at 2: still a search.
        (halved(65536, 20) + [0.125] * 2, 1, None),  # Found.
        (halved(65536, 20), 10, None),  # One step in ten was skipped.
        ([1.0, 0.5, 0.0] + [0.0] * 30, 1, None),  # No scale of a loss, such as that of a learning rate.
    ],
)
def test_a_printed_scale_that_falls_until_the_log_ends(
    scales: list[float], every: int, expected: tuple[int, int] | None
) -> None:
    result = skipped_to_the_end(log([2.0] * len(scales), [every * n for n in range(len(scales))], scales=scales))
    assert (result and (result.count, result.line)) == expected


def test_norms_of_steps_that_are_skipped_in_search_of_a_scale() -> None:
    norms = [1.0] * 20 + [math.inf] * 8
    search = log([2.0] * 28, norms=norms, scales=[65536.0] * 20 + halved(32768, 8))
    result = non_finite_to_the_end(search)
    assert result is not None and not result.lasting
    result = non_finite_to_the_end(log([2.0] * 28, norms=norms, scales=[65536.0] * 28))
    assert result is not None and result.lasting


def test_steps_that_went_on_behind_the_last_overflow() -> None:
    assert skipped_to_the_end(overflow([1, 1, 1], steps=300)) is None


@pytest.mark.parametrize(
    ("losses", "skipped", "text"),
    [
        ([2.0, 0.2, 0.0, 0.0], [NAN] * 4, True),  # The loss before the first such norm was still finite.
        ([2.0, 2.0, 2.0, 2.0], [NAN] * 4, False),  # It may have been skipped, as float16 does.
        ([2.0, 2.0, 2.0, 2.0], [0.0] * 4, True),  # Megatron prints that no step was skipped.
        ([2.0, 2.0, 2.0, 2.0], [0.0, 1.0, 1.0, 1.0], False),
    ],
)
def test_a_few_norms_that_are_not_finite_at_the_end(losses: list[float], skipped: list[float], text: bool) -> None:
    norms = [1.0, NAN, NAN, NAN]
    case = non_finite_to_the_end(log(losses, norms=norms, skipped=skipped))
    assert case is not None and case.lasting is text


@pytest.mark.parametrize(("scale", "text"), [(1.0, True), (4096.0, False)])
def test_two_norms_that_are_not_finite_are_enough_without_a_loss_scale(scale: float, text: bool) -> None:
    case = non_finite_to_the_end(log([2.0] * 4, norms=[1.0, 1.0, NAN, NAN], scales=[scale] * 4))
    assert case is not None and (case.line, case.lasting) == (3, text)


def test_a_climb_to_far_above_the_start_is_found_where_it_left_it() -> None:
    losses = [10.8, *course(9.0, 20), *[9.0 + 0.5 * n for n in range(60)]]
    result = jump(log(losses, norms=[*[1.0] * 24, *[9.0] * 57]))
    assert result is not None and not result.at_once and result.fell
    assert (result.line, result.steps_after, result.norms) == (26, 56, (1.0, 9.0))
    assert result.before == pytest.approx(9, abs=0.02) and result.after == pytest.approx(33.75)
    at_once = jump(log([10.8, *[12.0 + n for n in range(60)]]))
    assert at_once is not None and not at_once.fell


@pytest.mark.parametrize(
    "losses",
    [
        [*course(2.0, 30), *[2.0 + 0.03 * n for n in range(60)]],
        [1e-4 * n for n in range(90)],
        [*[4.0 * n for n in range(1, 60)], *course(3.0, 25)],
        [*course(2.0, 40, noise=1.9), *course(5.0, 40, noise=3.5, seed=1)],
        [2.0, *[9.0] * 20],
    ],
    ids=["less than twice", "a term that is built up", "it came back", "noisy", "too short"],
)
def test_no_climb(losses: list[float]) -> None:
    assert jump(log(losses)) is None


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(31, 200), st.floats(1.0, 20.0), st.floats(0.05, 0.9))
def test_a_run_that_learns_never_climbs(seed: int, count: int, start: float, share: float) -> None:
    chance = random.Random(seed)
    falls = [start * (share + (1 - share) * 0.97**n) * chance.uniform(0.8, 1.2) for n in range(count)]
    assert jump(log(falls)) is None


def test_each_trainer_of_a_log_has_its_steps(tmp_path: Path) -> None:
    lines = [f"{{'loss': {4 - n / 100}, 'learning_rate': 0.1, 'epoch': {n / 10}}}\n" for n in range(60)]
    lines += [f"iter {n}: loss {'nan' if n > 20 else 3.5}, time 9.00ms, mfu 1.00%\n" for n in range(40)]
    (tmp_path / "train.log").write_text("".join(lines))
    logs = printed_steps(gather(tmp_path, Limits())).logs
    assert [len(log.series.lines) for log in logs if log.series is not None] == [60, 40]
    assert [non_finite_to_the_end(log) is not None for log in logs] == [False, True]
