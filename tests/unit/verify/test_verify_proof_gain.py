"""Changes of figures against their noise: what counts as better, and which figures a cause is about."""

import pytest
from hypothesis import given, settings, strategies as st

from dtk.verify.verify import Change, figures_of, improved, of_peak, of_steps

VALUES = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=9)


@given(VALUES, VALUES)
@settings(max_examples=60, deadline=None)
def test_a_change_back_is_the_opposite_gain_with_the_same_noise(before: list[float], after: list[float]) -> None:
    there, back = of_steps("time", " ms", before, after), of_steps("time", " ms", after, before)
    assert there is not None and back is not None
    assert there.gain == -back.gain and there.noise == back.noise >= 0
    more = of_steps("tokens/s", "", before, after, less_is_better=False)
    assert more is not None and more.gain == -there.gain
    assert not (improved([there]) and improved([more]))


def test_the_median_and_its_deviation_are_not_moved_by_one_outlier() -> None:
    change = of_steps("time", " ms", [10.0, 11.0, 12.0, 500.0, 11.0], [5.0, 5.0, 5.0])
    assert change == Change("time", " ms", 11.0, 5.0, 1.0) and str(change) == "time 11.0 -> 5.0 ms, noise 1.0"


def test_nothing_measured_is_no_change() -> None:
    assert of_steps("time", "", [], [1.0]) is None and of_steps("time", "", [1.0], []) is None
    assert of_peak(None, 1.0) is None and of_peak(1.0, None) is None
    assert not improved([])


def test_peaks_differ_by_two_percent_without_a_reason() -> None:
    less, same = of_peak(100 * 2**20, 97 * 2**20), of_peak(100 * 2**20, 98.5 * 2**20)
    assert less is not None and same is not None
    assert improved([less]) and not improved([same])


def test_a_gain_that_costs_elsewhere_is_none() -> None:
    gain, loss, noise = (Change("a", "", 10.0, after, 1.0) for after in (5.0, 12.0, 10.5))
    assert improved([gain, noise]) and not improved([gain, loss]) and not improved([noise])


@pytest.mark.parametrize(
    ("cause", "figures"),
    [
        ("memory.full_gather", ("memory",)),
        ("overlap.small_buckets", ("exposed", "tokens")),
        ("overlap.data_bound", ("tokens",)),
        ("hang.group_order", ()),
        ("numeric.non_finite", ()),
    ],
)
def test_what_a_cause_is_about(cause: str, figures: tuple[str, ...]) -> None:
    assert figures_of(cause) == figures
