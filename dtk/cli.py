"""The `dtk` command: thin, and every import inside the subcommand that needs it.

Reading runs works without torch and Hydra; only `dtk run` needs them.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from diagnostics.invocation import command
from dtk import __version__
from dtk.demo import add_parser as add_demo
from dtk.diagnose import add_parser as add_diagnose
from dtk.errors import USER_ERROR, DtkError
from dtk.plan.command import add_parser as add_plan
from dtk.preflight.command import add_parser as add_preflight
from dtk.watch import add_parser as add_watch

RUNS = Path("runs")


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand.

    Returns:
        exit code: 0, or 2 with one line on stderr when the input is wrong; of `dtk run` see `dtk.run`.
    """
    typed = sys.argv[1:] if argv is None else argv
    try:
        # Not argparse's business: what follows belongs to dtk.run, or is a command of the user's, options included.
        code = _run(typed[1:]) if typed[:1] == ["run"] else _dispatch(*_split(typed))
        sys.stdout.flush()
        return code
    except DtkError as error:
        print(f"dtk: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:  # dtk ls | head
        sys.stderr.close()
        return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of dtk."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        raise DtkError(message, fix=command(*self.prog.split()[1:], "--help"))


def _split(typed: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is for dtk, and what follows `--`: the command of `dtk watch`, the arguments of a script in preflight."""
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
    chosen: Callable[[argparse.Namespace], int] | None = arguments.command
    if chosen is None:
        parser.print_help()
        return 0
    return chosen(arguments)


def _parser() -> "tuple[_Parser, argparse._SubParsersAction[_Parser]]":
    parser = _Parser(
        prog="dtk",
        description="Run training experiments under any data-parallel strategy, and read what they left behind.",
        epilog="examples: dtk run strategy=fsdp model=gpt2 | dtk run --help | dtk ls | dtk show RUN | dtk diagnose RUN",
    )
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"dtk {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("run", help="train: dtk run [KEY=VALUE ...]; dtk run --help lists all choices")
    strategies = commands.add_parser("strategies", help="what each strategy shards and communicates")
    strategies.add_argument("--markdown", action="store_true", help="as a Markdown table")
    strategies.set_defaults(command=_strategies)
    ls = commands.add_parser("ls", help="list runs, newest first")
    ls.add_argument("folder", nargs="?", type=Path, default=RUNS, metavar="FOLDER", help="default: runs")
    ls.set_defaults(command=_ls)
    show = commands.add_parser("show", help="one run: status, failure, figures, what was recorded")
    show.add_argument("run", metavar="RUN", help="a path, an id under runs/, or the unique beginning of one")
    show.add_argument("--json", action="store_true", help="as one JSON object")
    show.set_defaults(command=_show)
    add_plan(commands)
    add_diagnose(commands)
    add_watch(commands)
    add_preflight(commands)
    add_demo(commands)
    return parser, commands


def _run(argv: list[str]) -> int:
    from dtk.run import main as run

    return run(argv)


def _strategies(arguments: argparse.Namespace) -> int:
    from dtk.strategies.catalogue import render

    sys.stdout.write(render("markdown" if arguments.markdown else "terminal"))
    return 0


def _ls(arguments: argparse.Namespace) -> int:
    from diagnostics.runs import list_runs
    from diagnostics.runs_text import listing

    folder: Path = arguments.folder
    nothing_yet = folder == RUNS and not folder.exists()
    try:
        runs = [] if nothing_yet else list_runs(folder)
    except OSError as error:
        raise DtkError(f"cannot list {folder}", error.strerror or str(error), f"{command('ls')} FOLDER") from error
    if not runs:
        print(f"no runs in {folder} yet; make one: {command('run', 'experiment=smoke')}", file=sys.stderr)
        return 0
    sys.stdout.write(listing(runs, terminal=sys.stdout.isatty()))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from diagnostics.runs import NoSuchRunError, find_run, read_details
    from diagnostics.runs_text import details, details_json

    try:
        run = read_details(find_run(arguments.run))
    except NoSuchRunError as error:
        raise DtkError(str(error), fix=f"{command('ls')} lists the runs") from error
    sys.stdout.write(details_json(run) if arguments.json else details(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
