"""The Markdown form: complete, and evidence cannot become markup."""

import re

from msgspec.structs import replace

from diagnostics.report.markdown import code, text
from diagnostics.report.model import Coverage
from tests.unit.diagnostics.report.samples import HOSTILE, as_markdown as render, full, report


def test_content() -> None:
    text = render(full())
    assert text.startswith("# HUNG\\: ranks".replace("\\:", ":"))
    for phrase in (
        "## What happened `hang.collective_mismatch`",
        "- **confidence**: 97%",
        "- **rank 1 \\(at fault\\)**: `/home/me/project/train.py:88 in log_metrics`, broadcast \\[1\\] int64",
        "- **fix** (override): `strategy.bucket_cap_mb=25`",
        "- [x] gradients are reduced in many tiny buckets (`overlap.small_buckets`), "
        "confirmed: exposed 41 ms of 180 ms",
        "| confirmed | a rank raised an exception; `hang.rank_raised` | ranks 0, 2-3 | ",
        "| Connection closed by peer; explained by hang.collective\\_mismatch |",
    ):
        assert phrase in text, phrase


def test_evidence_stays_text() -> None:
    text = render(full(HOSTILE))
    outside = re.sub(r"(`+).*?[^`]\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)<", outside)
    assert "\x1b" not in text and "\u202e" not in text
    assert not re.search(r"(?<!\\)\[x\](?<!\\)\(javascript", outside)


def test_pieces() -> None:
    assert text("a|b <i> `c`\n") == "a\\|b \\<i\\> \\`c\\`\\\\n"
    assert code("a`b") == "``a`b``" and code("`") == "`` ` ``" and code("") == "` `"


def test_healthy() -> None:
    assert render(report()).startswith("# HEALTHY: ")


def test_figures_that_cannot_be_are_dashes_and_open_branches_are_not_ruled_out() -> None:
    absent = (Coverage("trace", 0, 0, ("rank0.json: it is empty",)),)
    text = render(replace(full(), coverage=absent, measures={"memory": {"ranks": {0: {"peak_bytes": 0}}}}))
    assert "| trace | - | - | rank0.json: it is empty |" in text
    assert "0 bytes" not in text
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
    for mark, status in ((r"- \[?\]", ", undecided"), ("- [ ]", ", ruled out"), ("- [x]", ", confirmed")):
        result = [line for line in lines if line.startswith(mark)]
        assert result and all(status in line for line in result)
