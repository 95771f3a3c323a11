"""The Markdown form: complete, and evidence cannot become markup."""

import re

from diagnostics.report.markdown import code, render, text
from tests.unit.diagnostics.report.samples import HOSTILE, full, report


def test_content() -> None:
    made = render(full())
    assert made.startswith("# HUNG\\: ranks".replace("\\:", ":"))
    for told in (
        "`hang.collective_mismatch`, 97% sure",
        "`rank 1 rank 1: /home/me/project/train.py:88 in log_metrics, broadcast [1] int64`",
        "- **fix** (override): `strategy.bucket_cap_mb=25`",
        "- [x] many tiny buckets are reduced (`overlap.small_buckets`), confirmed: exposed 41 ms of 180 ms",
        "| hang.rank\\_raised | confirmed \\(explained by hang.collective\\_mismatch\\) | ranks 0, 2-3 |",
    ):
        assert told in made, told


def test_evidence_stays_text() -> None:
    made = render(full(HOSTILE))
    outside = re.sub(r"(`+).*?[^`]\1(?!`)", "", made)
    assert not re.search(r"(?<!\\)<", outside)
    assert "\x1b" not in made and "\u202e" not in made
    assert not re.search(r"(?<!\\)\[x\](?<!\\)\(javascript", outside)


def test_pieces() -> None:
    assert text("a|b <i> `c`\n") == "a\\|b \\<i\\> \\`c\\`\\\\n"
    assert code("a`b") == "``a`b``" and code("`") == "`` ` ``" and code("") == "` `"


def test_healthy() -> None:
    assert render(report()).startswith("# HEALTHY: ")
