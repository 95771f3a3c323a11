"""Groups and options for `dtk run --help`, read from conf/ without Hydra or a YAML parser."""

from collections.abc import Mapping
from pathlib import Path

from diagnostics.contract.files import table_beside
from diagnostics.contract.suggest import did_you_mean
from dtk.config.folders import conf_folder, groups
from dtk.errors import DtkError

ALL = "all"
_LISTED = 20  # Longer lists are shown only on request.


def description(path: Path) -> str:
    """Return the first comment line of a YAML file without its `#`; empty if the file does not start with one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("# @"):  # Hydra's own header.
                return line.removeprefix("#").strip() if line.startswith("#") else ""
    return ""


def help_text(which: str = "") -> str:
    """Return the groups of the configuration and their options as text.

    `which` is empty for names only; a group or `all` for its options with descriptions.

    Raises:
        DtkError: the group is unknown.
    """
    options_of = groups([conf_folder()])
    if which not in ("", ALL, *options_of):
        near = did_you_mean(which, (ALL, *options_of)) or f"groups: {', '.join(options_of)}"
        raise DtkError(f'dtk run --help: there is no group "{which}"', fix=near)
    if which in options_of:
        return "\n".join(_described(which, options_of[which])) + "\n"
    listed = {title: [each for each in names if each in options_of] for title, names in table_beside(__file__).items()}
    listed["more"] = [name for name in options_of if not any(name in names for names in listed.values())]
    lines = ["choices (GROUP=OPTION):"]
    width = max(map(len, options_of))
    for title, names in listed.items():
        if not names:
            continue
        lines.append(f"  {title}")
        for name in names:
            options = options_of[name]
            if which == ALL:
                lines += _described(name, options)
            else:
                few = ", ".join(options) if len(options) <= _LISTED else f"{len(options)} options: --help {name}"
                lines.append(f"    {name:<{width}}  {few}")
    return "\n".join(lines) + "\n"


def _described(group: str, options: Mapping[str, Path]) -> list[str]:
    width = max(map(len, options))
    return [f"  {group}", *(f"    {option:<{width}}  {description(path)}" for option, path in options.items())]
