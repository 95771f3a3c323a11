"""Two courses of steps beside each other."""

from array import array

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.printed_pairs import courses, frozen_beside, multiples, worse_after_resume
from diagnostics.analysis.printed_steps import Printed, PrintedSteps
from diagnostics.evidence.logs.steps import Series, Steps


def printed(losses: list[float], first: int = 1, norms: list[float] | None = None, file: str = "a") -> Printed:
    count = len(losses)
    series = Series(
        lines=array("q", range(1, count + 1)),
        step=array("d", range(first, first + count)),
        loss=array("d", losses),
        norm=array("d", norms or [1.0] * count),
    )
    return Printed(file, Steps({"nanogpt": series}), "nanogpt")


def job(*logs: Printed) -> PrintedSteps:
    return PrintedSteps(logs, ())


def noisy(count: int, start: float = 4.0, fall: float = 0.02) -> list[float]:
    return [round(start - n * fall + 0.05 * ((n * 7919) % 13) / 13, 4) for n in range(count)]


@given(st.integers(2, 64), st.floats(0.1, 10.0), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_factor_is_found_whichever_run_comes_first(factor: int, start: float, swap: bool) -> None:
    losses = [start + 0.01 * ((n * 7919) % 13) for n in range(40)]
    logs = [printed(losses), printed([factor * loss for loss in losses], file="b")]
    ((figure, result, first, other),) = multiples(job(*(logs[::-1] if swap else logs)))
    assert (figure, result, first.file, other.file) == ("loss", factor, "a", "b")


def test_gradients_alone_may_be_a_multiple() -> None:
    losses, norms = noisy(40), [1 + 0.1 * (n % 7) for n in range(40)]
    result = multiples(job(printed(losses, norms=norms), printed(losses, norms=[8 * norm for norm in norms], file="b")))
    assert [case[:2] for case in result] == [("grad_norm", 8)]


@pytest.mark.parametrize("other", [noisy(40), noisy(40, 8.0, 0.01), [1.5 * loss for loss in noisy(40)], noisy(9)])
def test_other_pairs_are_no_multiples(other: list[float]) -> None:
    assert not [*multiples(job(printed(noisy(40)), printed(other, file="b")))]


@pytest.mark.parametrize(
    ("loss", "norm", "first", "expected"),
    [
        (4.0, 4.0, 1, [("loss", 4)]),
        (0.25, 0.25, 1, [("loss", 4)]),
        (1.0, 8.0, 1, [("grad_norm", 8)]),
        (4.0, 4.02, 1, []),
        (4.0, 4.0, 31, []),  # Not the weights that both began with.
        (1.0, 1.0, 1, []),
    ],
)
def test_runs_that_part_after_the_first_step(
    loss: float, norm: float, first: int, expected: list[tuple[str, int]]
) -> None:
    losses, norms = noisy(40), [1 + 0.1 * (n % 7) for n in range(40)]
    other = [loss * losses[0], *(5.0 + 0.1 * (n % 9) for n in range(39))]
    logs = printed(losses, first, norms), printed(other, first, [norm * norms[0], *norms[1:]], "b")
    assert [case[:2] for case in multiples(job(*logs))] == expected


def test_a_run_that_stays_where_it_began_beside_one_that_falls() -> None:
    flat = noisy(80, 4.0, 0.0)
    frozen = frozen_beside(job(printed(flat, file="flat"), printed(noisy(80))))
    assert frozen is not None and frozen.file == "flat"
    assert frozen_beside(job(printed(noisy(80)), printed(noisy(80, 4.0, 0.01), file="b"))) is None
    assert frozen_beside(job(printed(flat), printed(flat, file="b"))) is None


def test_a_log_is_cut_where_its_steps_begin_again() -> None:
    log = printed(noisy(30))
    log.series.step[20:] = array("d", range(11, 21))
    assert [(part.rows[0][0], len(part.rows)) for part in courses(log)] == [(1, 20), (11, 10)]
    assert courses(printed([float("nan")] * 9)) == []


@pytest.mark.parametrize(
    ("first", "losses", "is_worse"),
    [
        (101, noisy(30), True),  # It starts anew.
        (81, [2.5 * loss for loss in noisy(30, 2.0)], True),
        (101, noisy(30, 2.0), False),
        (1, noisy(30), False),  # Another run.
        (101, [*noisy(4, 2.0), *noisy(26, 5.0)], True),  # Only the weights were loaded.
        (101, [*noisy(12, 2.0), *noisy(18, 5.0)], False),  # It diverges later.
        (400, noisy(30), False),  # A gap: it is not known what lies between.
    ],
)
def test_a_resume_is_held_against_what_came_before(first: int, losses: list[float], is_worse: bool) -> None:
    result = worse_after_resume(job(printed(losses, first, file="b"), printed(noisy(100))))
    assert (result is not None) == is_worse
    if result is not None:
        assert (result[0].file, result[1].file) == ("a", "b") and result[3] > 1.5 * result[2]


def test_two_trainers_in_the_same_logs_are_not_compared_with_each_other() -> None:
    """A script may print the sum of what its trainer prints the mean of; two runs of it are compared all the same."""

    def both(file: str) -> list[Printed]:
        own, sums = printed(noisy(60)), printed([4 * loss for loss in noisy(60)])
        steps = Steps({"own": own.steps.series["nanogpt"], "nanogpt": sums.steps.series["nanogpt"]})
        return [Printed(file, steps, "own"), Printed(file, steps, "nanogpt")]

    assert not list(multiples(job(*both("a"), *both("b"))))
    resumed = printed([4 * loss for loss in noisy(30)], first=40)
    mixed = Steps({"own": printed(noisy(60)).steps.series["nanogpt"], "nanogpt": resumed.steps.series["nanogpt"]})
    assert worse_after_resume(job(Printed("a", mixed, "own"), Printed("a", mixed, "nanogpt"))) is None
    assert worse_after_resume(job(printed(noisy(60)), printed([4 * loss for loss in noisy(30)], first=40))) is not None
    assert list(multiples(job(printed(noisy(60), file="a"), printed([4 * loss for loss in noisy(60)], file="b"))))
