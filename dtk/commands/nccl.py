"""`dtk nccl`: options and subcommands. `--help` imports neither torch nor NVML."""

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtk.console import output
from dtk.console.options import Parser, add_command, add_options, read_options
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.nccl.presets import Preset

FORMS = ("sh", "slurm", "k8s", "docker")
MOST_DIGITS = 40  # Maximum digits of a number; Python refuses to parse several thousand.
HERE = "env"  # Name of the current environment in `dtk nccl diff`.


def add_more(parser: Parser) -> None:
    """Add the actions of `nccl`; options common to all of them are accepted before the action as well."""
    table = read_options(__file__)
    add_options(parser, table["common"])
    parser.set_defaults(json=False, markdown=False, config_dir=None)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for name, answer in ANSWERS.items():
        action = {"text": "", **table["actions"][name]}
        action["options"] = {**table["common"], **action["options"]} if "options" in action else table["common"]
        add_command(actions, name, action, answer, forms=FORMS)


def run(arguments: argparse.Namespace) -> int:
    """List the presets."""
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
        """Return variables of this environment, of a file or of a preset."""
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
    from dtk.nccl.lint import SCHEMA, installed_nccl, lint_given
    from dtk.nccl.machine import read_machine
    from dtk.nccl.text import linted
    from dtk.nccl.variable_sources import given_here, given_in

    machine = None if arguments.elsewhere else read_machine(os.environ)
    version = arguments.nccl_version or ("" if arguments.elsewhere else installed_nccl())
    given = given_here(os.environ) if arguments.file is None else given_in(arguments.file)
    lint = lint_given(given, machine, arguments.nodes or given.nodes or _slurm_nodes(), version)
    plain = {"schema": SCHEMA, "exit_code": lint.exit_code, **asdict(lint)}
    return _answer(arguments, lambda: plain, lambda: linted(lint), lint.exit_code)


def _slurm_nodes() -> int | None:
    """Return the number of nodes of the enclosing Slurm job; None outside of Slurm."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES", "")
    return int(nodes) if nodes.isascii() and nodes.isdigit() and int(nodes) else None


def _recommend(arguments: argparse.Namespace) -> int:
    from dtk.nccl.machine import read_machine
    from dtk.nccl.presets import recommend
    from dtk.nccl.text import recommended

    machine = read_machine(os.environ)
    presets, besides = recommend(machine, arguments.nodes or _slurm_nodes())
    plain = {"machine": machine, "recommended": presets, "besides": besides}
    return _answer(arguments, lambda: plain, lambda: recommended(presets, besides))


def _export(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import find_preset
    from dtk.nccl.text import export

    preset = find_preset(arguments.preset, arguments.config_dir)
    values: dict[str, str] = {}
    for override in arguments.overrides:
        key, equals, value = override.removeprefix("nccl.").partition("=")
        if not equals or not value or not value.isprintable():
            raise DtkError(f'"{override}" is not KEY=VALUE', fix="for example interface=eth0")
        values[key] = value
    run = values.pop("run", None)
    filled = replace(preset, config=replace(preset.config, **_typed(preset, values)))
    given = {**values, **({"run": run} if run else {})}
    text = export(filled, arguments.format, given, Path(run) if run else None)
    return _answer(arguments, lambda: {"preset": preset.name, "format": arguments.format, "text": text}, lambda: text)


def _typed(preset: "Preset", values: dict[str, str]) -> dict[str, Any]:
    """Convert texts to values of the section; reject keys that the preset lacks and values of a wrong type or range."""
    from dtk.config.limits import check_numbers
    from dtk.nccl.render import check_address_range, placeholders

    typed: dict[str, Any] = {}
    for key, text in values.items():
        if key not in placeholders(preset.config):
            keys = sorted({*placeholders(preset.config), "run"})
            raise DtkError(f"nccl={preset.name} does not use {key}", fix=f"keys: {', '.join(keys)}")
        if key in ("traffic_class", "ras_port"):
            if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
                raise DtkError(f"{key}={text} is not a number")
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
        "variables": preset.settings,
    }


def _answer(arguments: argparse.Namespace, plain: Callable[[], Any], text: Callable[[], str], code: int = 0) -> int:
    if arguments.json:
        from diagnostics.report import jsonform

        output.put(jsonform.text(plain()))
    else:
        output.put(text())
    return code


ANSWERS = {
    "list": run, "show": _show, "diff": _diff, "lint": _lint, "recommend": _recommend, "export": _export,
}  # fmt: skip
