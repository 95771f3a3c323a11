"""The frame of an HTML page that needs no network: its style and script are in it, and its policy allows nothing else.

Knows nothing of what the page says.
"""

import base64
import hashlib
from pathlib import Path

from diagnostics.report.markup import Markup, el


def document(title: str, *parts: Markup | None, script: Markup | None = None) -> str:
    """A whole page.

    Args:
        title: of the window, plain text.
        parts: what the body holds.
        script: the only one that may run; None = none at all.
    """
    style = part("page.css")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; "
    policy += f"script-src '{_hash(script)}'; " if script is not None else ""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Markup(
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}base-uri 'none'; form-action 'none'\">"
        ),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", style),
    )
    body = el("body", *parts, el("script", script) if script is not None else None)
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def part(name: str) -> Markup:
    """A style or script that lies beside this module."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """As a policy names what is inline."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
