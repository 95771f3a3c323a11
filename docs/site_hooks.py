"""For the site (mkdocs.yml): what GitHub understands in a page and mkdocs does not. Links to files of the repository
that are no pages of the site become plain text, and a list or table that directly follows its sentence becomes one.
"""

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^ *```")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) |^\|")


def with_blank_lines(markdown: str) -> str:
    """Return the text with a blank line before each list and table, which mkdocs needs after a sentence or code."""
    lines: list[str] = []
    code = False
    inside = False  # A list or table, which lasts until a blank line.
    for line in markdown.split("\n"):
        fence, item = _FENCE.match(line), not code and _ITEM.match(line)
        if item and not inside and lines and lines[-1].strip():
            lines.append("")
        code = code != bool(fence)
        inside = bool(item) or (inside and bool(line.strip()) and not fence)
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links that leave docs/ replaced by their text and path in the repository, lists and tables."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        parts: list[str] = []
        if "://" in match[2]:
            return match[0]
        for part in (folder / match[2]).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return match[0] if parts[:1] == ["docs"] else f"{match[1]} (`{'/'.join(parts)}`)"

    return _LINK.sub(replaced, with_blank_lines(markdown))
