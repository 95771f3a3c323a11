"""For the site (mkdocs.yml): links to files of the repository that are no pages of the site become plain text there."""

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with links that leave docs/ replaced by their text and the path in the repository."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        parts: list[str] = []
        if "://" in match[2]:
            return match[0]
        for part in (folder / match[2]).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return match[0] if parts[:1] == ["docs"] else f"{match[1]} (`{'/'.join(parts)}`)"

    return _LINK.sub(replaced, markdown)
