"""The `command` of a sweep file: it must be named, as W&B's default passes `--key=value`, which is no override."""

from itertools import pairwise
from typing import Any

from dtk.config.overrides import parse
from dtk.errors import DtkError

CHOICES = "${args_no_hyphens}"  # W&B's name for the parameters of a point as `key=value` words.
DEFAULT = ["${env}", "${interpreter}", "-m", "dtk.run", "tracker=wandb", CHOICES]
WRITE = f"write command: [{', '.join(repr(word) if word.startswith('$') else word for word in DEFAULT)}]"
_PROGRAM = "dtk.run"


def fixed_overrides(content: dict[str, Any]) -> list[str]:
    """Return the overrides that a file's `command` gives to every point.

    Args:
        content: the sweep file.

    Raises:
        DtkError: no command, or one that does not end in dtk's with its overrides.
    """
    words = content.get("command")
    if words is None:
        raise DtkError("it has no command", "W&B would pass --key=value to a program", WRITE)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DtkError("command is no list of words", fix=WRITE)
    named = [word if word != "${program}" else str(content.get("program")) for word in words]
    start = next((at for at, pair in enumerate(pairwise(named)) if pair in (("-m", _PROGRAM), ("dtk", "run"))), None)
    if start is None:
        raise DtkError("command does not run dtk", "a point is a dtk run", WRITE)
    overrides = named[start + 2 :]
    if overrides.count(CHOICES) != 1:
        what = f"command passes a point's parameters {overrides.count(CHOICES)} times"
        raise DtkError(what, f"{CHOICES} is what dtk run reads", WRITE)
    fixed = [word for word in overrides if word != CHOICES]
    for word in fixed:
        if word.startswith(("-", "$")):
            raise DtkError(f"command: {word} cannot be used", f"a point takes KEY=VALUE and {CHOICES}", "leave it out")
        if parse(word).is_sweep_override():
            raise DtkError(f"command: {word} asks for several runs", fix="list the values under parameters")
    return fixed
