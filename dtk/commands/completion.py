"""`dtk completion SHELL`: prints the script that completes commands, options, groups, keys and runs on Tab."""

import argparse
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dtk.console import output

SCRIPTS = Path(__file__).parents[1] / "console" / "completion"
WITH_OVERRIDES = ("run", "rerun", "plan", "preflight", "sweep", "tune", "bench")
WITH_RUNS = ("show", "rerun", "rm", "compare", "diagnose", "trace", "sync")
_VALUES = re.compile(r"'([^']+)'")  # As in the type of a key: `Literal['full', 'light']`.
VALUES = {"shells": tuple(sorted(path.stem for path in SCRIPTS.iterdir()))}


def run(arguments: argparse.Namespace) -> int:
    """Print the script, or, as the script asks for by a line, the completions of the line's last word."""
    if arguments.line is None:
        output.put((SCRIPTS / f"{arguments.shell}.txt").read_text(encoding="utf-8"))
        return 0
    typed = arguments.line.split(" ")[1:] or [""]
    output.put("".join(f"{word}\n" for word in sorted({w for w in candidates(typed) if w.startswith(typed[-1])})))
    return 0


def candidates(typed: list[str]) -> Iterator[str]:
    """Yield candidates for the last word, which may be incomplete or empty; the caller filters by prefix."""
    from dtk.commands.main import make_parser

    command, last = typed[0], typed[-1]
    parser, commands = make_parser([command] if len(typed) > 1 else [])
    if len(typed) == 1:
        yield from commands.choices
    elif last.startswith("-"):
        if command == "run":
            from dtk.run import options

            parser = options()
        else:
            parser = commands.choices.get(command, parser)
        yield from (name for action in parser._actions for name in action.option_strings if name.startswith("--"))
    else:
        if command in WITH_OVERRIDES:
            yield from _overrides(last.partition("="))
        if command == "explain":
            from dtk.commands.explain import everything

            yield from (rows[0][0] for rows in everything())
        if command in WITH_RUNS:
            yield "last"
            with suppress(OSError):  # The shell evaluates completions: exclude everything that it would expand or run.
                yield from (path.name for path in Path("runs").iterdir() if path.name == shlex.quote(path.name))


def _overrides(typed: tuple[str, str, str]) -> Iterator[str]:
    """Yield groups and keys, or after the `=` of one its options or values."""
    from dtk.config.folders import groups, search_path
    from dtk.config.keys import keys

    name, equals, _ = typed
    options = groups(search_path(None))
    if not equals:
        yield from (f"{key}=" for key in (*options, *(key.name for key in keys())))
        return
    yield from (f"{name}={option}" for option in options.get(name, ()))
    for key in keys():
        if key.name == name:
            values = ["true", "false"] if key.type == "bool" else _VALUES.findall(key.type)
            yield from (f"{name}={value}" for value in values)
