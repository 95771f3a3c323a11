"""`dtk nccl`: options, and which part answers. `--help` imports neither torch nor NVML."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtk.console import output
from dtk.console.options import add_flags, add_number, whole
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.nccl.presets import Preset

FORMS = ("sh", "slurm", "k8s", "docker")
MOST_DIGITS = 40
"""Of a number; Python refuses to read some thousand."""
HERE = "env"
"""Stands for this environment in `dtk nccl diff`."""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its own subcommands."""
    parser = _add(commands, "nccl", _list, "nccl", "presets for NCCL with their reasons, and a linter")
    parser.set_defaults(json=False, markdown=False, config_dir=None)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listed = _add(actions, "list", _list, "", "the presets, one line each")
    add_flags(listed, markdown="every variable of every preset, as Markdown")
    show = _add(actions, "show", _show, "", "one preset, every variable with its reason")
    show.add_argument("preset", metavar="PRESET")
    diff = _add(actions, "diff", _diff, "", "what two presets set differently, marked as by diff -u")
    for side in ("first", "second"):
        diff.add_argument(side, metavar="A" if side == "first" else "B", help="a preset, a file, or env")
    lint = _add(actions, "lint", _lint, "nccl_lint", "what is wrong with the variables here or in a file")
    lint.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: what a job started here would take")
    add_number(lint, "--nodes", whole(1, 1_000_000), "of the job")
    lint.add_argument("--nccl-version", default="", metavar="V", help="default: the one that torch brings, if it does")
    add_flags(lint, elsewhere="the variables are for another machine: leave this one's out of it")
    about = "the preset that fits this machine, by NVML and /sys, and why"
    recommend = _add(actions, "recommend", _recommend, "", about)
    add_number(recommend, "--nodes", whole(1, 1_000_000), "of the job")
    export = _add(actions, "export", _export, "nccl_export", "a preset for other launchers")
    export.add_argument("preset", metavar="PRESET")
    export.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys that the preset needs")
    export.add_argument("--format", required=True, choices=FORMS, metavar="F", help=f"one of {', '.join(FORMS)}")


def _add(
    commands: "argparse._SubParsersAction[Any]",
    name: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
    about: str,
) -> Any:
    """Add a parser with the options of every action, before it or after it; where they are absent, earlier ones hold.

    Args:
        commands: gets it.
        name: of the action.
        command: answers it.
        text: name of its help text; empty = `about` is all there is to say.
        about: its line in the list of actions.
    """
    parser = commands.add_parser(name, help=about, text=text, description=f"{about[0].upper()}{about[1:]}.")
    absent = argparse.SUPPRESS
    json_help = "as JSON on standard output, and nothing else"
    parser.add_argument("--json", action="store_true", default=absent, help=json_help)
    config_help = "a folder with presets of your own (DIR/nccl)"
    parser.add_argument("--config-dir", type=Path, default=absent, metavar="DIR", help=config_help)
    parser.set_defaults(command=command)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import read_presets, readable_presets
    from dtk.nccl.text import listing, markdown

    if arguments.markdown:
        output.put(markdown(read_presets(arguments.config_dir)))
        return 0
    presets, problems = readable_presets(arguments.config_dir)
    broken = {name: {"name": name, "problem": str(problem)} for name, problem in problems.items()}
    plain = {name: _as_json(preset) for name, preset in presets.items()} | broken
    return _answer(arguments, lambda: plain, lambda: listing(presets, problems), 1 if problems else 0)


def _show(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import find_preset
    from dtk.nccl.text import shown

    preset = find_preset(arguments.preset, arguments.config_dir)
    return _answer(arguments, lambda: _as_json(preset), lambda: shown(preset))


def _diff(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import find_preset
    from dtk.nccl.text import differences
    from dtk.nccl.variable_sources import given_here, given_in

    def variables(name: str) -> dict[str, str]:
        """Variables of this environment, of a file or of a preset."""
        if name == HERE:
            return given_here(os.environ).variables
        if "/" in name or "." in name:
            return given_in(Path(name)).variables
        return find_preset(name, arguments.config_dir).config.variables

    names = (arguments.first, arguments.second)
    a, b = map(variables, names)
    changed = {name: [a.get(name), b.get(name)] for name in sorted({*a, *b}) if a.get(name) != b.get(name)}
    return _answer(arguments, lambda: {"changed": changed}, lambda: differences(*names, a, b))


def _lint(arguments: argparse.Namespace) -> int:
    from dtk.nccl.lint import installed_nccl, lint_given
    from dtk.nccl.machine import read_machine
    from dtk.nccl.text import linted
    from dtk.nccl.variable_sources import given_here, given_in

    machine = None if arguments.elsewhere else read_machine(os.environ)
    version = arguments.nccl_version or ("" if arguments.elsewhere else installed_nccl())
    given = given_here(os.environ) if arguments.file is None else given_in(arguments.file)
    lint = lint_given(given, machine, arguments.nodes or given.nodes or _slurm_nodes(), version)
    return _answer(arguments, lint.as_json, lambda: linted(lint), lint.exit_code)


def _slurm_nodes() -> int | None:
    """Nodes of the Slurm job that this is part of."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES", "")
    return int(nodes) if nodes.isascii() and nodes.isdigit() and int(nodes) else None


def _recommend(arguments: argparse.Namespace) -> int:
    from dtk.nccl.machine import read_machine
    from dtk.nccl.recommend import recommend
    from dtk.nccl.text import recommended

    machine = read_machine(os.environ)
    presets, besides = recommend(machine, arguments.nodes or _slurm_nodes())
    plain = {"machine": asdict(machine), "recommended": [asdict(preset) for preset in presets], "besides": besides}
    return _answer(arguments, lambda: plain, lambda: recommended(presets, besides))


def _export(arguments: argparse.Namespace) -> int:
    from dtk.nccl.export import export
    from dtk.nccl.presets import find_preset

    preset = find_preset(arguments.preset, arguments.config_dir)
    values: dict[str, str] = {}
    for override in arguments.overrides:
        key, equals, value = override.removeprefix("nccl.").partition("=")
        if not equals or not value or not value.isprintable():
            raise DtkError(f'"{override}" is no KEY=VALUE', fix="for example interface=eth0")
        values[key] = value
    run = values.pop("run", None)
    filled = replace(preset, config=replace(preset.config, **_typed(preset, values)))
    given = {**values, **({"run": run} if run else {})}
    text = export(filled, arguments.format, given, Path(run) if run else None)
    return _answer(arguments, lambda: {"preset": preset.name, "format": arguments.format, "text": text}, lambda: text)


def _typed(preset: "Preset", values: dict[str, str]) -> dict[str, Any]:
    """Keys of the section from texts; refuse keys that the preset lacks, and values out of kind or range."""
    from dtk.config.limits import check_numbers
    from dtk.nccl.render import check_address_range, placeholders

    typed: dict[str, Any] = {}
    for key, text in values.items():
        if key not in placeholders(preset.config):
            keys = sorted({*placeholders(preset.config), "run"})
            raise DtkError(f"nccl={preset.name} has no use for {key}", fix=f"keys: {', '.join(keys)}")
        if key in ("traffic_class", "ras_port"):
            if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
                raise DtkError(f"{key}={text} is no number")
            typed[key] = int(text)
        else:
            typed[key] = text
    check_numbers({"nccl": typed})
    check_address_range(typed.get("address_range"))
    return typed


def _as_json(preset: "Preset") -> dict[str, Any]:
    return {
        "name": preset.name,
        "summary": preset.summary,
        "backend": preset.config.backend,
        "about": preset.about,
        "variables": [asdict(setting) for setting in preset.settings],
    }


def _answer(arguments: argparse.Namespace, plain: Callable[[], Any], text: Callable[[], str], code: int = 0) -> int:
    """Print the answer as JSON or as text; returns the exit code."""
    if arguments.json:
        output.say(json.dumps(plain(), indent=2))
    else:
        output.put(text())
    return code
