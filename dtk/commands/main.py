"""The `dtk` command: thin, and every import inside the subcommand that needs it.

Reading runs works without torch and Hydra; only `dtk run` needs them.
"""

import argparse
import gc
import shutil
import sys
from collections.abc import Callable, Sequence

from dtk import __version__
from dtk.commands import (
    attach,
    bench,
    compare,
    demo,
    diagnose,
    doctor,
    ls,
    nccl,
    plan,
    preflight,
    rerun,
    rm,
    show,
    sweep,
    tune,
    watch,
)
from dtk.console.entry import ended
from dtk.console.help_text import show_help
from dtk.console.options import Parser
from dtk.errors import DtkError

EXAMPLES = """\
examples:
  dtk run experiment=smoke strategy=ddp       seconds on a laptop
  dtk run strategy=fsdp model=gpt2            train
  dtk ls                                      what has run
  dtk show last --why train.steps             one run, and who set a key of it
  dtk diagnose last                           why it hung, crashed or is slow
Each command has its own: dtk COMMAND --help

exit code: 0 done; 2 wrong input (one line); 1 what the command's --help says."""
_COMMANDS = (
    ls, show, rerun, rm, sweep, plan, compare, diagnose, watch, attach, preflight, bench, tune, doctor, nccl, demo,
)  # fmt: skip
"""In the order of `dtk --help`."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand.

    Returns:
        exit code: 0, or 2 with one line on stderr when the input is wrong; of `dtk run` see `dtk.run`.
    """
    gc.set_threshold(100_000)  # Importing torch makes so much that lives to the end that walking it is a third of it.
    return ended(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(typed: list[str]) -> int:
    if sys.stdout is None:
        raise DtkError("standard output is closed", fix="redirect it: > FILE, or > /dev/null")
    # Not argparse's business: what follows belongs to dtk.run, or is a command of the user's, options included.
    return _run(typed[1:]) if typed[:1] == ["run"] else _dispatch(*_split(typed))


def _split(typed: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split the arguments for dtk from what follows `--`: a command to watch, or a script's arguments in preflight."""
    if typed[:1] not in (["watch"], ["preflight"]) or "--" not in typed:
        return typed, ()
    at = typed.index("--")
    return typed[:at], typed[at + 1 :]


def _dispatch(argv: Sequence[str], wrapped: Sequence[str]) -> int:
    parser, commands = _parser()
    if argv and not argv[0].startswith("-") and argv[0] not in commands.choices:
        from dtk.config.suggest import did_you_mean

        near = did_you_mean(argv[0], commands.choices)
        raise DtkError(f'there is no command "{argv[0]}"', fix=near or f"commands: {', '.join(commands.choices)}")
    arguments, rest = parser.parse_known_args(argv)
    if hasattr(arguments, "overrides"):  # argparse takes them in one place only, not between options
        arguments.overrides += [text for text in rest if not text.startswith("-")]
        rest = [text for text in rest if text.startswith("-")]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.wrapped = list(wrapped)
    chosen: Callable[[argparse.Namespace], int] = arguments.command
    return ended(lambda: chosen(arguments), arguments.stopped)


def _parser() -> "tuple[Parser, argparse._SubParsersAction[Parser]]":
    parser = Parser(
        prog="dtk",
        description="Run training experiments under any parallel strategy, and read what they left behind.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(command=lambda arguments: show_help(parser), stopped="")
    parser.add_argument("--version", action="version", version=f"dtk {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("run", help="train: dtk run [KEY=VALUE ...]; dtk run --help lists all choices")
    strategies = commands.add_parser(
        "strategies",
        help="what each strategy shards and communicates",
        description="What each strategy= shards, issues and sends per step, and when to use it.",
    )
    strategies.add_argument("--markdown", action="store_true", help="as a Markdown table")
    strategies.set_defaults(command=_strategies)
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser, commands


def _run(argv: list[str]) -> int:
    from dtk.run import main as run

    return run(argv)


def _strategies(arguments: argparse.Namespace) -> int:
    from dtk.console.output import put
    from dtk.strategies.table import render

    put(render("markdown" if arguments.markdown else "terminal", shutil.get_terminal_size().columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
