"""What the findings of memory share: open findings, remedies of a run or a program, places and phrases."""

import pytest
from msgspec.structs import replace

from diagnostics.analysis.memory.job import PREDICTED_RANKS, Prediction
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Where, text_of
from diagnostics.evidence.model import Frame

ROWS = table_beside(shared.__file__)["texts"]
RECORDED = sorted(row.removesuffix("_of_dtk") for row in ROWS if row.endswith("_of_dtk"))


class Job:
    """Whether it is a dtk run is all that is asked of its evidence."""

    def __init__(self, is_dtk: bool) -> None:
        self.evidence, self.is_dtk = self, is_dtk


@pytest.mark.parametrize("what", RECORDED)
@pytest.mark.parametrize("is_dtk", [True, False])
def test_what_is_not_recorded_is_named_with_what_would_record_it(what: str, is_dtk: bool) -> None:
    finding = shared.not_recorded(Job(is_dtk), what, total="5 GiB")  # type: ignore[arg-type]
    text = text_of(finding)
    assert finding.status == "undecided" and text.summary.endswith(".") and "{" not in text.summary
    assert text.missing == ROWS[f"{what}_of_dtk" if is_dtk else f"{what}_elsewhere"]["missing"]
    assert text.missing.startswith("record=full") == is_dtk


def test_what_is_absent_rules_a_cause_out() -> None:
    finding = shared.TEXTS.ruled_out("unsharded", strategy="ddp")
    text = text_of(finding)
    assert (finding.status, text.summary, text.measured) == (
        "ruled_out", "Strategy ddp shards no parameters.", "strategy ddp shards no parameters"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("site", "at_head", "text", "does"),
    [
        (None, False, "", None),
        (Frame("/job/t.py", 54, "log_norms"), False, " at t.py:54", "gathers"),
        (
            Frame("/job/t.py", 50, "log_norms"),
            True,
            " in log_norms (t.py:50)",
            "gathers (the line is the first of the function)",
        ),
        (Frame("C:\\job\\t.py", 1, "<module>"), True, " in t.py", "gathers (a line of the script around it)"),
    ],
)
def test_a_line_says_when_it_is_only_the_head_of_its_function(
    site: Frame | None, at_head: bool, text: str, does: str | None
) -> None:
    assert shared.spot(site, at_head) == text
    places = [replace(at, does=str(at.does)) for at in shared.where(site, at_head, 2, "gathers")]
    assert places == ([Where(2, site.file, site.line, site.function, does)] if site and does else [])


def test_shares_of_a_peak() -> None:
    assert str(shared.share(22, 100)) == " (22% of the peak of 100 bytes)" and shared.share(22, None) == ""
    assert str(shared.share(10**9, 1)).startswith(" (999% of the peak"), "more than ten times a peak is not believed"
    assert shared.of_peak(1024, 2048) == "1 KiB of 2 KiB" and shared.of_peak(1024, None) == "1 KiB"
    assert [shared.rank_names(ranks) for ranks in ((2,), range(4), ())] == ["rank 2", "ranks 0-3", "every rank"]


def test_what_more_ranks_would_need() -> None:
    assert shared.on_more_ranks(None) == ""
    text = str(shared.on_more_ranks(Prediction(120 << 20, 40 << 20)))
    assert text == f"; on {PREDICTED_RANKS} ranks, each rank would need 120 MiB; without it, 40 MiB"
