"""Groups and options for `dtk run --help`, read from conf/ without Hydra or a YAML parser."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from diagnostics.contract.files import table_beside
from diagnostics.contract.suggest import did_you_mean
from dtk.config.folders import conf_folder, groups
from dtk.errors import DtkError

ALL = "all"
_LISTED = 20  # Longer lists are shown only on request.
_UNBROKEN = 10_000  # Columns; the parser of the command wraps its help.


def description(path: Path) -> str:
    """Return the first comment line of a YAML file without its `#`; empty if the file does not start with one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("# @"):  # Hydra's own header.
                return line.removeprefix("#").strip() if line.startswith("#") else ""
    return ""


def help_text(which: str = "") -> str:
    """Return the groups of the configuration and their options as text.

    `which` is empty for names only; a group or `all` for options with descriptions. DtkError if no such group.
    """
    options_of = groups([conf_folder()])
    if which not in ("", ALL, *options_of):
        near = did_you_mean(which, (ALL, *options_of)) or f"groups: {', '.join(options_of)}"
        raise DtkError(f'dtk run --help: there is no group "{which}"', fix=near)
    if which in options_of:
        return _described(which, options_of[which])
    listed = {title: [each for each in names if each in options_of] for title, names in table_beside(__file__).items()}
    listed["more"] = [name for name in options_of if not any(name in names for names in listed.values())]
    text = "choices (GROUP=OPTION):\n"
    for title, names in listed.items():
        chosen = {name: options_of[name] for name in names}
        if which == ALL and names:
            text += f"  {title}\n" + "".join(_described(name, options) for name, options in chosen.items())
        elif names:
            few = [", ".join(o) if len(o) <= _LISTED else f"{len(o)} options: --help {n}" for n, o in chosen.items()]
            text += _aligned(title, zip(chosen, few, strict=True))
    return text


def _described(group: str, options: Mapping[str, Path]) -> str:
    return _aligned(group, ((option, description(path)) for option, path in options.items()))


def _aligned(title: str, rows: Iterable[tuple[str, str]]) -> str:
    from diagnostics.report import document as doc, terminal

    table = doc.Table(("", ""), tuple((f"    {name}", text) for name, text in rows), names=2)
    return f"  {title}\n" + terminal.render(doc.Document("", "", (table,)), columns=_UNBROKEN, colour=False)
