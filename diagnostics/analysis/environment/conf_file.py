"""NCCL's configuration files (/etc/nccl.conf, ~/.nccl.conf, $NCCL_CONF_FILE): the values as NCCL takes them."""

from dataclasses import dataclass

from diagnostics.analysis.environment.catalogue import catalogue


@dataclass(frozen=True, slots=True)
class ConfFile:
    """The content of one file."""

    variables: dict[str, str]
    """The first of several values counts; the environment of the process wins over all."""
    oddities: tuple[tuple[int, str], ...]
    """(line number from 1, what is odd about it)."""
    lines: dict[str, int]
    """Variable -> its line number."""


def parse_conf(text: str) -> ConfFile:
    """Read lines `NAME=value` as NCCL does: nothing is trimmed, no quotes, no `export`; `#` only begins a line.

    Blanks and the carriage return of Windows' line ends stay in the value; of known names `rules_values` judges them.
    """
    variables: dict[str, str] = {}
    oddities: list[tuple[int, str]] = []
    lines: dict[str, int] = {}
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip() or content.startswith("#"):
            continue
        name, equals, value = content.partition("=")
        if not equals:
            oddities.append((line, f"no `=`: the line {content.strip()[:60]!r} is ignored"))
            continue
        if name != name.strip() or name.startswith("export "):
            problem = f"spaces and `export` become part of the name: it is {name!r}, which nothing reads"
            oddities.append((line, problem))
        if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
            oddities.append((line, f"quotes become part of the value: it is {value}"))
        elif value != value.strip() and catalogue().find(name) is None:
            oddities.append((line, f"spaces become part of the value: it is {value!r}"))
        if "#" in value:
            oddities.append((line, "a comment begins at the start of a line only: here it is part of the value"))
        variables.setdefault(name, value)
        lines.setdefault(name, line)
    return ConfFile(variables, tuple(oddities), lines)
