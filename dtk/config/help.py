"""The text of `dtk run --help`: groups, options and examples, read from conf/. Knows neither Hydra nor YAML."""

from collections.abc import Mapping
from pathlib import Path

from dtk.config.folders import conf_folder, groups
from dtk.config.suggest import did_you_mean
from dtk.errors import DtkError

ALL = "all"
_SECTIONS = {
    "what is trained": ("experiment", "model", "data", "task"),
    "how": ("strategy", "parallel", "precision", "optimizer", "schedule"),
    "where": ("launcher", "nccl"),
    "what is kept": ("checkpoint", "record", "tracker"),
    "what goes wrong, on purpose": ("fault",),
}
"""In which order the groups are shown; others follow."""
_LISTED = 20
"""Longer lists are not shown without being asked for."""

_EXAMPLES = (
    ("python -m dtk.run strategy=fsdp model=gpt2", "the main job"),
    ("python -m dtk.run experiment=smoke strategy=ddp", "seconds on a laptop"),
    ("python -m dtk.run -m strategy=ddp,zero1,zero2,fsdp experiment=bench", "one run after another"),
    ("python -m dtk.run -m strategy=ddp,fsdp experiment=bench repeats=3", "in turns, three times, and compared"),
    ("python -m dtk.run data=text data.path=my_texts train.steps=200", "your own text"),
    ("python -m dtk.run resume=runs/<id> train.steps=500", "go on with a run"),
    ("python -m dtk.run launcher=slurm launcher.nodes=2 --dry-run", "print the job for a cluster"),
    ("python -m dtk.run --cfg strategy=ddp", "print the configuration, run nothing"),
)


def description(path: Path) -> str:
    """Return the first comment line of a YAML file without its `#`; empty if the file starts with anything else."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("# @"):  # Hydra's own header
                return line.removeprefix("#").strip() if line.startswith("#") else ""
    return ""


def help_text(which: str = "") -> str:
    """Return the text below the options of `dtk run --help`.

    Args:
        which: empty = names only, and examples; a group, or `all`, = its options with what each is.

    Raises:
        DtkError: there is no such group.
    """
    known = groups([conf_folder()])
    if which not in ("", ALL, *known):
        near = did_you_mean(which, (ALL, *known)) or f"groups: {', '.join(known)}"
        raise DtkError(f'dtk run --help knows no group "{which}"', fix=near)
    if which in known:
        return "\n".join(_described(which, known[which])) + "\n"
    listed = {title: [name for name in names if name in known] for title, names in _SECTIONS.items()}
    listed["more"] = [name for name in known if not any(name in names for names in listed.values())]
    lines = ["choices (GROUP=OPTION):"]
    width = max(map(len, known))
    for title, names in listed.items():
        if not names:
            continue
        lines.append(f"  {title}")
        for name in names:
            options = known[name]
            if which == ALL:
                lines += _described(name, options)
            else:
                few = ", ".join(options) if len(options) <= _LISTED else f"{len(options)} options: --help {name}"
                lines.append(f"    {name:<{width}}  {few}")
    lines += [
        "",
        "--help GROUP says what each of its options is, --help all what all are.",
        "any key of the configuration is set by its dotted name, for example train.steps=100;",
        "--cfg prints them all.",
        "",
        "examples:",
    ]
    width = max(len(command) for command, _ in _EXAMPLES)
    lines += [f"  {command:<{width}}  # {what}" for command, what in _EXAMPLES]
    return "\n".join(lines) + "\n"


def _described(group: str, options: Mapping[str, Path]) -> list[str]:
    """Return a group with a line for each option."""
    width = max(map(len, options))
    return [f"  {group}", *(f"    {option:<{width}}  {description(path)}" for option, path in options.items())]
