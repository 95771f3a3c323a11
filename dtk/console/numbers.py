"""Types of options that are numbers within bounds, for argparse."""

import argparse
from collections.abc import Callable


def above_zero(most: float, what: str) -> Callable[[str], float]:
    """Return a parser for a number in (0, `most`]; it rejects anything else, NaN included, as `'x' is no WHAT`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return value

    return parse


def whole(least: int, most: int, what: str) -> Callable[[str], int]:
    """Return a parser for a whole number in [`least`, `most`]."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return int(text)

    return parse
