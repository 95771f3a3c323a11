"""The table of what a line of a log can say: `patterns.yaml` beside this module, compiled. Reads no log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from diagnostics.contract.files import table_beside
from diagnostics.evidence.logs.fields import SIZE


@dataclass(frozen=True)
class Pattern:
    """One kind of fact, by one of the words that it is found by."""

    kind: str
    word: bytes
    """Stands literally in every such line."""
    text: str
    """Regular expression, compiled when a line first holds the word: most logs need few of them."""
    rank_group: str
    """Group that holds the global rank the line speaks for, where no prefix says it."""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The expression."""
        return re.compile(self.text, re.ASCII)  # What libraries write; other digits would make no number.


def _table() -> Iterator[Pattern]:
    """Yield the patterns in the order of the file; `%NAME%` stands for a fragment, `%WORD%` for the word."""
    table = table_beside(__file__)
    fragments = {"SIZE": SIZE, **{name: "".join(parts) for name, parts in table["fragments"].items()}}
    for line in table["lines"]:
        for word in line["words"]:
            regex = "".join(line["regex"])
            for name, text in {**fragments, "WORD": word}.items():
                regex = regex.replace(f"%{name}%", text)
            yield Pattern(line["kind"], word.encode(), regex, line.get("rank", ""))


TABLE: tuple[Pattern, ...] = tuple(_table())
