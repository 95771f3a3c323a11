"""The documentation as a site, opened from disk: its search works without a server and asks nothing of the network."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_the_search_works_from_disk_and_nothing_is_fetched(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    page = browser.new_page()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url) if request.url[:5] != "file:" else None)
    page.goto((tmp_path / "guides" / "slow.html").as_uri())
    page.click("[data-md-component=search-query]")
    page.keyboard.type("straggler")
    page.locator(".md-search-result__item").first.wait_for()
    assert not fetched
    page.close()
    pages = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.html")]
    assert len(pages) > 30
    for text in pages:  # A list or table that mkdocs took for a sentence.
        prose = re.sub(r"<(pre|code).*?</\1>", "", text, flags=re.DOTALL)
        lines = [line for part in re.findall(r"<p>(.*?)</p>", prose, re.DOTALL) for line in part.split("\n")]
        assert not [line for line in lines if re.match(r"- |\| ?-|\| \w", line)]
