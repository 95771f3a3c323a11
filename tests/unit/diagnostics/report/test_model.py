"""The report as values: titles of causes, and what counts as healthy."""

import msgspec
import pytest

from tests.unit.diagnostics.report.samples import finding, report


def test_a_cause_is_named_by_its_title_else_by_its_id() -> None:
    result = report(finding("hang.network"))
    assert result.title("hang.network") == result.titles["hang.network"] != "hang.network"
    assert result.title("toys.none_left") == "toys.none_left"


def test_only_the_outcome_healthy_is_healthy() -> None:
    result = report(finding("hang.network"))
    assert not result.healthy and msgspec.structs.replace(result, outcome="healthy").healthy


def test_a_report_does_not_change() -> None:
    with pytest.raises(AttributeError):
        report().outcome = "healthy"  # type: ignore[misc]
