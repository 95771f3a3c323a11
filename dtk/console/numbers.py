"""Types of options that are numbers within bounds, for argparse."""

import argparse
from collections.abc import Callable


def above_zero(most: float, what: str) -> Callable[[str], float]:
    """A number in (0, `most`]; anything else, NaN included, is refused as `'x' is no WHAT`."""

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
    """A whole number in [`least`, `most`]."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return int(text)

    return parse
