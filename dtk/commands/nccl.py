"""`dtk nccl`: options, and which part answers. `--help` imports neither torch nor NVML."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtk.console import output
from dtk.console.options import add_number, whole
from dtk.errors import DtkError

if TYPE_CHECKING:
    from dtk.nccl.presets import Preset

FORMS = ("sh", "slurm", "k8s", "docker")
MOST_DIGITS = 40
"""Of a number; Python refuses to read some thousand."""
HERE = "env"
"""Stands for this environment in `dtk nccl diff`."""
DESCRIPTION = """\
Presets of environment variables for NCCL, each with its reason, and a linter for those that you have. dtk run
takes a preset as nccl=NAME; what you set yourself always wins over it."""
EXAMPLES = """\
examples:
  dtk nccl                                        the presets
  dtk nccl show tcp_ethernet                      every variable: why, source, versions, when it harms
  dtk nccl recommend                              what fits this machine, and why
  dtk nccl lint                                   this environment, NCCL_CONF_FILE or ~/.nccl.conf, /etc/nccl.conf
  dtk nccl lint train.sbatch --nodes 4            a script, an nccl.conf, a YAML file
  dtk nccl diff infiniband roce                   presets, files, or env for this environment
  dtk nccl export tcp_ethernet interface=eth0 --format slurm
  dtk run nccl=tcp_ethernet nccl.interface=eth0   use one

Guide and all presets: docs/nccl.md"""
LINT = "What is wrong with the variables that a job started here would take, or with those in a file."
LINT_EPILOG = """\
Finds names that nothing reads, values that NCCL silently reads as 0 (true, off), levels in the wrong case, removed
names, settings that fight each other, interfaces and cards that are not here, and debugging left on.

exit code: 0 nothing but notes; 1 warnings or errors; 2 the file cannot be read (one line)

examples:
  dtk nccl lint
  dtk nccl lint /etc/nccl.conf
  dtk nccl lint job.yaml --elsewhere --nodes 8 --nccl-version 2.27.3"""
EXPORT_EPILOG = """\
Keys that a preset needs follow as KEY=VALUE, as in nccl.KEY=VALUE of dtk run; run=FOLDER is where it writes files.
The shell forms leave alone what is set already.

examples:
  dtk nccl export debug_net run=/shared/logs --format sh > nccl.sh
  dtk nccl export roce traffic_class=104 --format k8s"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the subcommand with its own subcommands."""
    parser = _add(commands, "nccl", "presets for NCCL with their reasons, and a linter", DESCRIPTION, EXAMPLES)
    _common(parser, _list)
    parser.set_defaults(json=False, markdown=False, config_dir=None)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listed = _add(actions, "list", "the presets", "One line a preset.")
    listed.add_argument("--markdown", action="store_true", help="every variable of every preset, as Markdown")
    _common(listed, _list)
    show = _add(actions, "show", "one preset, every variable with its reason", "Everything about one preset.")
    show.add_argument("preset", metavar="PRESET")
    _common(show, _show)
    diff = _add(actions, "diff", "what two presets set differently", "Differences, as diff -u marks them.")
    for side in ("first", "second"):
        diff.add_argument(side, metavar="A" if side == "first" else "B", help="a preset, a file, or env")
    _common(diff, _diff)
    _add_lint(actions)
    recommend = _add(actions, "recommend", "the preset that fits this machine, and why", "Looks at NVML and /sys.")
    add_number(recommend, "--nodes", whole(1, 1_000_000), "of the job")
    _common(recommend, _recommend)
    export = _add(actions, "export", "a preset for other launchers", "A preset in another form.", EXPORT_EPILOG)
    export.add_argument("preset", metavar="PRESET")
    export.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys that the preset needs")
    export.add_argument("--format", required=True, choices=FORMS, metavar="F", help=f"one of {', '.join(FORMS)}")
    _common(export, _export)


def _add(commands: "argparse._SubParsersAction[Any]", name: str, short: str, long: str, epilog: str = "") -> Any:
    return commands.add_parser(name, help=short, description=long, epilog=epilog or None)


def _add_lint(actions: "argparse._SubParsersAction[Any]") -> None:
    lint = _add(actions, "lint", "what is wrong with the variables here or in a file", LINT, LINT_EPILOG)
    lint.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: what a job started here would take")
    add_number(lint, "--nodes", whole(1, 1_000_000), "of the job")
    lint.add_argument("--nccl-version", default="", metavar="V", help="default: the one that torch brings, if it does")
    lint.add_argument(
        "--elsewhere", action="store_true", help="the variables are for another machine: leave this one's out of it"
    )
    _common(lint, _lint)


def _common(parser: Any, command: Callable[[argparse.Namespace], int]) -> None:
    """Options of every action, before it or after it: an action that is not given them leaves the earlier ones be."""
    absent = argparse.SUPPRESS
    parser.add_argument(
        "--json", action="store_true", default=absent, help="as JSON on standard output, and nothing else"
    )
    help_text = "a folder with presets of your own (DIR/nccl)"
    parser.add_argument("--config-dir", type=Path, default=absent, metavar="DIR", help=help_text)
    parser.set_defaults(command=command)


def _list(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import read_presets, readable_presets
    from dtk.nccl.text import listing, markdown

    if arguments.markdown:
        output.put(markdown(read_presets(arguments.config_dir)))
        return 0
    presets, problems = readable_presets(arguments.config_dir)
    if arguments.json:
        broken = {name: {"name": name, "problem": str(problem)} for name, problem in problems.items()}
        _json({name: _as_json(preset) for name, preset in presets.items()} | broken)
    else:
        output.put(listing(presets, problems))
    return 1 if problems else 0


def _show(arguments: argparse.Namespace) -> int:
    from dtk.nccl.presets import find_preset
    from dtk.nccl.text import shown

    preset = find_preset(arguments.preset, arguments.config_dir)
    if arguments.json:
        _json(_as_json(preset))
    else:
        output.put(shown(preset))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from dtk.nccl.text import differences

    names = (arguments.first, arguments.second)
    a, b = (_side(name, arguments.config_dir) for name in names)
    if arguments.json:
        changed = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        _json({"changed": {name: [a.get(name), b.get(name)] for name in changed}})
    else:
        output.put(differences(*names, a, b))
    return 0


def _side(name: str, config_dir: Path | None) -> dict[str, str]:
    """Variables of a preset, a file or this environment."""
    from dtk.nccl.presets import find_preset
    from dtk.nccl.variable_sources import given_here, given_in

    if name == HERE:
        return given_here(os.environ).variables
    if "/" in name or "." in name:
        return given_in(Path(name)).variables
    return find_preset(name, config_dir).config.variables


def _lint(arguments: argparse.Namespace) -> int:
    from dtk.nccl.lint import installed_nccl, lint_given
    from dtk.nccl.machine import read_machine
    from dtk.nccl.text import linted
    from dtk.nccl.variable_sources import given_here, given_in

    machine = None if arguments.elsewhere else read_machine(os.environ)
    version = arguments.nccl_version or ("" if arguments.elsewhere else installed_nccl())
    given = given_here(os.environ) if arguments.file is None else given_in(arguments.file)
    found = lint_given(given, machine, arguments.nodes or given.nodes or _slurm_nodes(), version)
    if arguments.json:
        _json(found.as_json())
    else:
        output.put(linted(found))
    return found.exit_code


def _slurm_nodes() -> int | None:
    """Nodes of the Slurm job that this is part of."""
    told = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES", "")
    return int(told) if told.isascii() and told.isdigit() and int(told) else None


def _recommend(arguments: argparse.Namespace) -> int:
    from dtk.nccl.machine import read_machine
    from dtk.nccl.recommend import recommend
    from dtk.nccl.text import recommended

    machine = read_machine(os.environ)
    found, besides = recommend(machine, arguments.nodes or _slurm_nodes())
    if arguments.json:
        _json({"machine": asdict(machine), "recommended": [asdict(one) for one in found], "besides": besides})
    else:
        output.put(recommended(found, besides))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from dtk.nccl.export import export
    from dtk.nccl.presets import find_preset

    preset = find_preset(arguments.preset, arguments.config_dir)
    values = dict(_key_value(text) for text in arguments.overrides)
    run = values.pop("run", None)
    filled = replace(preset, config=replace(preset.config, **_typed(preset, values)))
    given = {**values, **({"run": run} if run else {})}
    text = export(filled, arguments.format, given, Path(run) if run else None)
    if arguments.json:
        _json({"preset": preset.name, "format": arguments.format, "text": text})
    else:
        output.put(text)
    return 0


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.removeprefix("nccl.").partition("=")
    if not equals or not value or not value.isprintable():
        raise DtkError(f'"{text}" is no KEY=VALUE', fix="for example interface=eth0")
    return key, value


def _typed(preset: "Preset", values: dict[str, str]) -> dict[str, Any]:
    """Keys of the section from texts; refuse keys that the preset lacks, and values out of kind or range."""
    from dtk.config.limits import check_numbers
    from dtk.nccl.render import check_address_range, placeholders

    typed: dict[str, Any] = {}
    for key, text in values.items():
        if key not in placeholders(preset.config):
            known = sorted({*placeholders(preset.config), "run"})
            raise DtkError(f"nccl={preset.name} has no use for {key}", fix=f"keys: {', '.join(known)}")
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


def _json(value: Any) -> None:
    output.put(json.dumps(value, indent=2) + "\n")
