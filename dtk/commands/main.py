"""The `dtk` command. Each subcommand imports what it needs when it is called; only `dtk run` needs torch and Hydra."""

import argparse
import atexit
import gc
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from dtk import __version__
from dtk.console.options import Parser, add_command, read_options, show_help
from dtk.errors import DtkError, ended

_COMMANDS = (
    "strategies", "new", "ls", "show", "ui", "rerun", "rm", "sweep", "plan", "compare", "diagnose", "trace", "watch",
    "attach", "sync", "preflight", "bench", "tune", "doctor", "nccl", "explain", "demo", "completion",
)  # fmt: skip
"""Names of the commands in the order of `dtk --help`."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return 0, or 2 with one line on stderr for invalid input (for `dtk run` see `dtk.run`)."""
    gc.set_threshold(100_000)  # Importing torch makes so much that lives to the end that walking it is a third of it.
    # Skip the final garbage collection, a tenth of a small diagnosis; Triton would then print all its live objects.
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    return ended(lambda: _dispatch(sys.argv[1:] if argv is None else argv))


def _dispatch(argv: list[str]) -> int:
    if sys.stdout is None:
        raise DtkError("standard output is closed", fix="redirect it: > FILE, or > /dev/null")
    if argv[:1] == ["run"]:  # `run` has its own parser, which needs Hydra and torch.
        from dtk.run import main as run

        return run(argv[1:])
    wrapped: list[str] = []
    if argv[:1] in (["watch"], ["preflight"]) and "--" in argv:
        # argparse must not parse a command to watch, or the arguments of a script.
        at = argv.index("--")
        argv, wrapped = argv[:at], argv[at + 1 :]
    parser, commands = make_parser(argv[:1])
    if argv and not argv[0].startswith("-") and argv[0] not in commands.choices:
        from diagnostics.contract.suggest import did_you_mean

        near = did_you_mean(argv[0], commands.choices)
        raise DtkError(f'there is no command "{argv[0]}"', fix=near or f"commands: {', '.join(commands.choices)}")
    arguments, rest = parser.parse_known_args(argv)
    if hasattr(arguments, "overrides"):  # argparse accepts them in one place only, not between options
        arguments.overrides += [text for text in rest if not text.startswith("-")]
        rest = [text for text in rest if text.startswith("-")]
    if rest and argv[0] == "watch" and not rest[0].startswith("-"):
        raise DtkError("the command to watch must follow --", fix=f"dtk watch -- {shlex.join(rest)}")
    if rest:
        commands.choices.get(argv[0], parser).error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.wrapped = wrapped
    chosen: Callable[[argparse.Namespace], int] = arguments.command
    return ended(lambda: chosen(arguments), arguments.stopped)


def make_parser(chosen: Sequence[str] = ()) -> "tuple[Parser, argparse._SubParsersAction[Parser]]":
    """Return the parser with all commands, or only with the chosen one, as importing each module takes time."""
    parser = Parser(prog="dtk", text="dtk")
    parser.set_defaults(command=lambda arguments: show_help(parser), stopped="")
    parser.add_argument("--version", action="version", version=f"dtk {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("run", help="train: dtk run [KEY=VALUE ...]; dtk run --help lists all choices")
    for name in [*chosen] if chosen and chosen[0] in _COMMANDS else _COMMANDS:
        module = import_module(f"dtk.commands.{name}")
        table = read_options(str(module.__file__))
        added = add_command(commands, name, table, getattr(module, "run", None), **getattr(module, "VALUES", {}))
        getattr(module, "add_more", lambda parser: None)(added)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
