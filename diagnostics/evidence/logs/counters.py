"""Whether a log goes on below a traceback: steps are printed, or what rose from line to line above it rises further."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside

GOES_ON = 3
"""Different steps that are printed behind a traceback by which the process has survived it; where ranks share a log
without prefixes, the peers of a rank that died print one more step at most."""
_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.
_LINE, _HEAD = 400, 80  # Characters of a line that are read, and of those in front of a number that are compared.


class Counters(Struct):
    """The steps below a traceback, and the numbers that rose above it, by the text in front of them."""

    highest: dict[str, int] = field(default_factory=dict)
    rises: Counter[str] = field(default_factory=Counter)
    """Lines above in which a number was higher than before, of those that rose often enough to be no list of ranks."""
    later: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    steps: set[str] = field(default_factory=set)

    @classmethod
    def above(cls, lines: Iterable[str]) -> "Counters":
        """Return the counters that rose in these lines."""
        highest, rises = dict[str, int](), Counter[str]()
        for head, value in (number for text in lines for number in _numbers(text)):
            rises[head] += value > highest.setdefault(head, value)
            highest[head] = max(highest[head], value)
        return cls(highest, Counter({head: count for head, count in rises.items() if count >= GOES_ON}))

    def go_on(self, text: str) -> bool:
        """Read a line below; return whether enough steps were printed by now, or most of what rose above rose further.

        A monitor goes on counting when a rank has ended, but the steps do not.
        """
        if step := _TEXT["progress"].findall(text):  # An epoch and a batch in it, say.
            self.steps.add(str(step))
        for head, value in _numbers(text) if self.rises else ():
            if head in self.rises and value > self.highest[head]:
                self.later[head].add(value)
        further = sum(self.rises[head] for head, values in self.later.items() if len(values) >= GOES_ON)
        return len(self.steps) >= GOES_ON or 2 * further > self.rises.total()


def _numbers(text: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a line, without times and measures, each with the text in front of it."""
    text = _TEXT["time"].sub("@", text[:_LINE])
    for match in _TEXT["number"].finditer(text):
        yield " ".join(re.sub(r"\d+", "#", text[: match.start()]).split())[-_HEAD:], int(match[0])
