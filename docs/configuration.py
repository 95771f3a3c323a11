"""Write docs/configuration.md, every key of a run, from the schema, and the table in docs/strategies.md:
python docs/configuration.py.

Tests check that both are up to date.
"""

import re
from itertools import groupby
from pathlib import Path

from dtk.commands import strategies as table
from dtk.config.keys import Key, keys

HEAD = """\
# Configuration
Every key of a run. `dtk run KEY=VALUE` sets it, `dtk explain KEY` prints it, and `dtk show RUN --why KEY` shows what
set it in a run. Defaults are those of the schema; the file that is selected from `conf/` may override them.
Generated from the schema by `python docs/configuration.py`.
"""


def render() -> str:
    """All keys, section by section."""
    sections = groupby(keys(), lambda key: key.name.partition(".")[0] if "." in key.name else "")
    return HEAD + "".join(_section(name, list(members)) for name, members in sections)


def with_table(page: str) -> str:
    """Return docs/strategies.md with the table that `dtk strategies --markdown` prints between its two comments."""
    between = r"(?<=checked by a test -->\n).*?(?=<!-- end of table -->)"
    return re.sub(between, lambda _: table.render(in_markdown=True), page, flags=re.DOTALL)


def _section(name: str, members: list[Key]) -> str:
    names = ("key", "exists with", "type", "default", "description")
    rows = "".join(
        f"| `{key.name}` | {_code(key.kind)} | {_code(key.type)} | {_code(key.default)} | {_cell(key.about)} |\n"
        for key in members
    )
    return f"\n## {name or 'The whole run'}\n| {' | '.join(names)} |\n|{' --- |' * len(names)}\n{rows}"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
        if "`" not in text
        else text.replace("|", "\\|")
    )


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(render())
    strategies = Path(__file__).with_name("strategies.md")
    strategies.write_text(with_table(strategies.read_text()))
