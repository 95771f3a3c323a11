"""Whether a log goes on below a traceback: a step that is named there rises further than above it."""

from collections import Counter

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside

GOES_ON = 3
"""Chosen: different steps behind a traceback by which the process that printed both has survived it."""
PEERS_GO_ON = 50
"""Chosen: the same of any rank. Up to their next collective, the peers of a rank that died print one accumulation of
micro-batches at most."""
_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.
_LINE, _HEAD = 400, 80  # Characters of a line that are read, and of those in front of a number that are compared.


class Counters(Struct):
    """The steps above a traceback and below it, by the text in front of them."""

    highest: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rises: Counter[str] = field(default_factory=Counter)
    """Lines in which a step was higher than before."""
    above: frozenset[str] = frozenset()  # What rose often enough above the traceback.

    def go_on(self, text: str) -> bool:
        """Read a line; return whether enough steps were printed by now.

        A monitor or a summary of the run goes on counting when a rank has ended, but the steps do not.
        """
        text = _TEXT["time"].sub("@", _TEXT["beside"].sub("", text[:_LINE]))
        if steps := [*_TEXT["progress"].finditer(text)]:
            head = " ".join(_TEXT["changes"].sub("#", text[: steps[0].start()]).split())[-_HEAD:]
            value = tuple(float(next(filter(None, step.groups()))) for step in steps)
            if value > self.highest.get(head, ()):
                self.highest[head] = value
                self.rises[head] += 1
        return any(n >= GOES_ON and head in (self.above or self.rises) for head, n in self.rises.items())
