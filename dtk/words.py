"""Phrases that several messages share."""


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `1,000 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def install(extra: str) -> str:
    """What to type for an optional part of dtk."""
    return f"pip install 'dtk-train[{extra}]' (from a clone: pip install '.[{extra}]')"
