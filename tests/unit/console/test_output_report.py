"""A report is handed over in the form that was asked for, and a page that fails does not lose the text."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.report.document import Document, Paragraph
from dtk.console.output import hand_over
from dtk.errors import DtkError


def document(result: str, *, page: str = "", brief: bool = False) -> Document:
    """Return a document that shows what it was made with."""
    return Document("A report", f"{result} page={page or None} brief={brief}", (Paragraph("the rest"),))


def show(arguments: dict[str, Any], **named: Any) -> None:
    """Hand the report `it` over, in the form that `arguments` ask for."""
    hand_over(
        argparse.Namespace(**{"json": False, **arguments}), "it", lambda result: {"found": result}, document, **named
    )


def test_text_markdown_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({}, brief=True)
    assert "it page=None brief=True" in capsys.readouterr().out
    show({"markdown": True}, brief=True)
    assert "it page=None brief=False" in capsys.readouterr().out, "what is for a terminal is for no file"
    show({"json": True, "markdown": True})
    assert json.loads(capsys.readouterr().out) == {"found": "it"}


def test_a_page_is_written_beside_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    show({"html": page}, page=True)
    assert f"it page={page} brief=False" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>") and "the rest" in page.read_text(
        encoding="utf-8"
    )
    show({"html": page})
    assert "page=None" in capsys.readouterr().out, "unless the caller names it"


def test_without_a_page_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show({"html": None}, page=True)
    assert "page=None" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_does_not_lose_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DtkError, match="cannot write"):
        show({"html": tmp_path / "none" / "page.html"}, page=True)
    assert "it page=None brief=False" in capsys.readouterr().out


def test_colours_only_where_they_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    show({"color": "always"})
    coloured = capsys.readouterr().out
    show({"color": "never"})
    assert "\x1b[" not in capsys.readouterr().out and "it page=None" in coloured
