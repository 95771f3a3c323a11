"""Every number in diagnostics/ is measured as a threshold, or it is said what else it is; the page shows both."""

from importlib import import_module
from types import SimpleNamespace

import pytest

from benchmarks import thresholds


def test_every_constant_is_measured_or_explained() -> None:
    measured, others = thresholds.results().thresholds, thresholds.others()
    constants = thresholds.constants()
    missing = constants.keys() - measured.keys() - others.keys()
    assert not missing, (
        "measure them (benchmarks/thresholds.py NAME), or say in benchmarks/thresholds.yaml what they are"
    )
    assert not (measured.keys() | others.keys()) - constants.keys(), (
        "these are gone: take their lines out, or --page if they moved"
    )
    assert not measured.keys() & others.keys()
    assert [name for name, (_, reason) in others.items() if not (reason or constants[name].about)] == []
    assert [name for name in measured if not constants[name].about] == []


def test_thresholds_have_the_values_that_were_measured() -> None:
    moved = {name: row.value for name, row in thresholds.results().thresholds.items() if row.value != _value(name)}
    assert not moved, "measure them again: benchmarks/thresholds.py NAME"


def _value(name: str) -> object:
    return thresholds.constants()[name].value


def test_the_page_shows_the_results() -> None:
    assert thresholds.PAGE.read_text(encoding="utf-8") == thresholds.page(), "python benchmarks/thresholds.py --page"


def test_a_constant_is_changed_where_it_is_imported_and_nowhere_else() -> None:
    profile = import_module("diagnostics.analysis.step_profile.overview")
    causes = import_module("diagnostics.causes.overlap._shared")
    tree = import_module("diagnostics.tree.arbitrate")
    before = profile.SHARE, tree.SHARE
    with thresholds.changed("analysis.step_profile.overview.SHARE", 0.3):
        assert (0.3, 0.3, before[1]) == (profile.SHARE, causes.SHARE, tree.SHARE)
    assert (before[0], before[0]) == (profile.SHARE, causes.SHARE)


def test_equal_small_numbers_of_two_modules_are_two_constants() -> None:
    modules = ("diagnostics.analysis.environment.job", "diagnostics.report.symptoms")
    job, symptoms = map(import_module, modules)
    assert job._SHOWN == symptoms._SHOWN
    with thresholds.changed("analysis.environment.job._SHOWN", 6):
        assert (job._SHOWN, symptoms._SHOWN) == (6, 3)


@pytest.mark.parametrize("value", [4, 0.25])
def test_a_watched_number_tells_for_which_value_a_comparison_turns(value: float) -> None:
    uses = thresholds.Uses()
    number = thresholds.watched(value, uses)
    assert (number > 3) == (value > 3) and (number >= 7.5) == (value >= 7.5)
    assert uses.met == {3.0, 7.5}
    assert (1 + 2 * number < 100) and (10 / 2 * number > 50.0) == (5 * value > 50)
    assert uses.met == {3.0, 7.5, 49.5, 10.0} and not uses.computed
    assert uses.decides(value, 9) and not uses.decides(1, 2)
    assert number**2 == value**2 and uses.computed


def test_a_watched_number_can_bound_a_slice() -> None:
    uses = thresholds.Uses()
    assert "abcdef"[: thresholds.watched(2, uses)] == "ab" and uses.computed


def test_numbers_are_found_however_they_are_written() -> None:
    constants = thresholds.constants()
    assert constants["causes.overlap.skew._MOST"].about.startswith("Minimum share")  # A comment.
    assert constants["evidence.memory.levels._EMPTY"].value == 0.25  # One of two.
    assert constants["causes.overlap.small_units._MANY"].value == 16  # From another one.
    assert "contract.artifacts.FINISHED" not in constants


def test_a_constant_is_followed_to_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = dict(thresholds.constants())
    constant = constants.pop("causes.overlap.host_bound._HOST_SHARE")
    monkeypatch.setattr(thresholds, "constants", lambda: constants | {"causes.overlap._idle._HOST_SHARE": constant})
    assert thresholds.moved() == {constant.name: "causes.overlap._idle._HOST_SHARE"}


def test_tried_values_stay_in_the_range_of_a_share() -> None:
    assert all(0.5 < each < 1 for each in thresholds.tried("a.SHARE", 0.5, upwards=True))
    assert max(thresholds.tried("a.LATE_S", 0.5, upwards=True)) == 5
    assert thresholds.tried("a.MANY", 3, upwards=False) == [2, 1, 0]


def test_the_nearest_value_with_another_answer_is_found() -> None:
    module = import_module("diagnostics.causes.suspicions")
    name = "causes.suspicions.LEAST"
    case = SimpleNamespace(name="job", ask=lambda: module.LEAST < 0.2, right=lambda answer: answer)
    uses = thresholds.Uses()
    with thresholds.all_watched({name: uses}):
        assert case.ask()
    assert uses.met == {0.2}
    expected = {"cases": [case], "today": {"job": True}, "uses": {"job": uses}}
    low, below = thresholds.move(name, **expected, upwards=False)
    high, above = thresholds.move(name, **expected, upwards=True)
    assert (low, below) == (pytest.approx(0.1 * module.LEAST), None)
    assert high < 0.2 <= above.value and (above.others, above.wrong, above.right) == (1, 1, 0)
