"""What all texts for people are written with: a rich console, and labelled lines that fold beside their label.

Knows no report. Everything that is written has its control characters made visible and is never read as markup.
"""

import io
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diagnostics.runs.text import clean

PIPE_COLUMNS = 160
"""Width of tables where there is no terminal; sentences are not broken there."""
LABEL = 8
"""Width of labels."""


def written(write: Callable[[Console], None], *, columns: int | None, colour: bool) -> str:
    """What `write` puts on a console, without blanks at the ends of lines.

    Args:
        write: is given the console.
        columns: width of the terminal; None = a pipe.
        colour: with colours (ANSI).
    """
    out = io.StringIO()
    write(
        Console(
            file=out,
            width=columns or PIPE_COLUMNS,
            force_terminal=colour,
            no_color=not colour,
            color_system="standard" if colour else None,
            markup=False,
            highlight=False,
            emoji=False,
            safe_box=True,
            legacy_windows=False,
        )
    )
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


class Writer:
    """Writes titles, labelled lines and sentences to one console."""

    def __init__(self, console: Console, *, wrap: bool) -> None:
        self.console = console
        self.wrap = wrap
        """Whether sentences are folded; in a pipe each stays on its line."""

    def title(self, text: str) -> None:
        """A heading, after an empty line."""
        self.console.print()
        self.text(Text(clean(text), style="bold underline"))

    def room(self) -> int:
        """Columns beside a label."""
        return self.console.width - LABEL if self.wrap else 10_000

    def line(self, label: str, text: str, style: str = "", *, width: int = LABEL, one_line: bool = False) -> None:
        """A label and a text that is folded beside it, or cut off there."""
        shown = Text(clean(text), style=style)
        if not self.wrap:
            self.text(Text(label.ljust(width), style="dim") + shown)
            return
        if one_line:
            shown.truncate(self.room(), overflow="ellipsis")
        table = Table.grid(padding=0)
        table.add_column(width=width)
        table.add_column(overflow="fold")
        table.add_row(Text(label, style="dim"), shown)
        self.console.print(table)

    def text(self, text: Text) -> None:
        """A sentence without a label."""
        self.console.print(text, soft_wrap=not self.wrap)
