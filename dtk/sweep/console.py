"""What a sweep says on standard output, a line at a time. Knows no sweep."""

from dtk.console.output import put


def say(text: str = "") -> None:
    """One line.

    Raises:
        DtkError: standard output is full.
    """
    put(f"{text}\n")
