"""`dtk ui` in a browser: it shows what comes while it is open, filters, sorts, compares, and asks nobody else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import ROOT, environment
from tests.unit.ui.folders import beat, logged, make_run


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The first page, with a run that continues and two that ended."""
    runs = tmp_path / "runs"
    for name, state in (("a-ddp", "queued"), ("b-fsdp", "finished"), ("c-fsdp", "failed")):
        beat(make_run(runs, name, state), 0, 5, "forward")
    words = [sys.executable, "-m", "dtk", "ui", str(runs), "--no-open"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT) as process:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        problems: list[str] = []
        context = browser.new_context()
        opened = context.new_page()
        opened.on("console", lambda message: problems.append(message.text))
        opened.on("pageerror", lambda error: problems.append(str(error)))
        host = address.partition("/?")[0]
        opened.on("request", lambda request: None if request.url.startswith(host) else problems.append(request.url))
        opened.goto(address)
        opened.wait_for_selector("#tools")
        yield opened
        context.close()
        process.terminate()
    no_configuration = "404 (Not Found)"  # The runs of this test cannot be compared, which the page says.
    assert [problem for problem in problems if no_configuration not in problem] == []


def rows(page: Any) -> list[str]:
    return [text.split()[0] for text in page.locator("#runs tbody tr").all_inner_texts()]


def shows(page: Any, selector: str, *, count: int = 1, text: str = "") -> None:
    """Wait until so many elements are there, with that text; the page's policy forbids a script to wait with."""
    from playwright.sync_api import expect

    elements = page.locator(selector)
    expect(elements).to_have_count(count, timeout=10_000)
    if text:
        expect(elements).to_contain_text(text, timeout=10_000)


def test_the_list_filters_sorts_and_compares(page: Any) -> None:
    assert "token" not in page.url and sorted(rows(page)) == ["a-ddp", "b-fsdp", "c-fsdp"]
    page.fill("#tools input", "fsdp")
    shows(page, "#runs tbody tr", count=2)
    for box in page.locator("#runs input").all():
        box.check()
    page.fill("#tools input", "")
    shows(page, "#runs tbody tr", count=3)
    assert page.locator("#runs input:checked").count() == 2, "ticks outlive a filter"
    page.click("#runs th:has-text('run')")
    shows(page, "#runs tbody tr:first-child", text="a-ddp")
    assert rows(page) == ["a-ddp", "b-fsdp", "c-fsdp"]
    page.click("#tools button")
    page.wait_for_url("**/compare?run=b-fsdp&run=c-fsdp")
    assert "All runs" in page.inner_text("header")


def test_a_run_is_shown_while_it_trains(page: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a-ddp"
    page.click("text=a-ddp")
    page.wait_for_selector("#training figure")
    closed = page.locator("#training details").first
    closed.locator("summary").click()
    assert "loss: 2.5" in page.inner_text("#training")
    logged(run, 6, 8)
    beat(run, 0, 8, "optimizer")
    shows(page, "#training", text="loss: 1")
    assert "optimizer" in page.inner_text("main")
    assert not page.locator("#training details").first.evaluate("fold => fold.open"), "what was closed stays so"


def test_a_phone_shows_it_without_scrolling_sideways(page: Any) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    page.click("text=a-ddp")
    page.wait_for_selector("#training figure")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.click("text=All runs")
    page.wait_for_selector("#tools")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
