"""Collects variables and their places: the environment, nccl.conf, scripts, Dockerfiles, YAML. Does not judge them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.values import ConfFile, parse_conf
from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.errors import DtkError, refused
from dtk.nccl import render
from dtk.nccl.render import ENVIRONMENT, MOST_BYTES

PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "PYTORCH_", "CUDA_LAUNCH_BLOCKING")  # Prefixes of collected names.
_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.


@dataclass(frozen=True, slots=True)
class Given:
    """Variables with their places, and problems of the files."""

    variables: dict[str, str]
    """Name -> value; empty if the value is known only when the script runs."""
    places: dict[str, str]
    """Name -> `environment` or `FILE:LINE`."""
    oddities: tuple[tuple[str, str, str], ...]
    """(place, the rule of the linter that it breaks, the text concerned)."""
    read: tuple[str, ...]
    """Files and environments that were read."""
    shadowed: tuple[tuple[str, str, str], ...] = ()
    """(name, place where it has no effect, value there)."""
    nodes: int | None = None
    """Number of nodes that a batch script requests."""


def given_here(environment: Mapping[str, str]) -> Given:
    """Return the variables of a job started here: the environment, then the user's file, then the machine's."""
    variables = {name: text for name, text in environment.items() if name.startswith(PREFIXES)}
    places = dict.fromkeys(variables, ENVIRONMENT)
    oddities: list[tuple[str, str, str]] = []
    shadowed: list[tuple[str, str, str]] = []
    read = [ENVIRONMENT]
    for file in map(render.read_conf, (render.user_file(environment), render.SYSTEM)):
        if file is None:
            continue
        read.append(str(file.path))
        oddities += _oddities(file.path, file.content)
        for name, text in file.content.variables.items():
            place = f"{file.path}:{file.content.lines[name]}"
            if name not in variables:
                variables[name], places[name] = text, place
            elif variables[name] != text:
                shadowed.append((name, place, text))
    return Given(variables, places, tuple(oddities), tuple(read), tuple(shadowed))


def given_in(path: Path) -> Given:
    """Return the variables that a file sets; DtkError if the file cannot be read, or is not text."""
    kind = path.suffix.lower()
    with refused(f"cannot read {path}", "", UnicodeDecodeError), path.open("rb") as file:
        raw = file.read(MOST_BYTES + 1)
        text = raw.decode()
    if len(raw) > MOST_BYTES or "\0" in text:
        raise DtkError(f"{path} is not a settings file", "it is too large, or not text")
    if kind in (".yaml", ".yml"):
        with refused(f"cannot read {path}", "", ValueError):
            return _given(path, dict(_walk(load_yaml(raw, Limits(), several=True))), {})
    if kind != ".conf" and (kind == ".env" or _TEXT["shell"].search(text)):
        variables, lines = _from_script(text, returns=kind != ".env")
        # The last line applies, and the minimum of a range.
        nodes = [int(match[1]) for match in _TEXT["nodes"].finditer(text)]
        return replace(_given(path, variables, lines), nodes=(nodes[-1] or None) if nodes else None)
    content = parse_conf(text)
    return replace(_given(path, content.variables, content.lines), oddities=tuple(_oddities(path, content)))


def _given(path: Path, variables: dict[str, str], lines: dict[str, int]) -> Given:
    places = {name: f"{path}:{lines[name]}" if name in lines else str(path) for name in variables}
    return Given(variables, places, (), (str(path),))


def _oddities(path: Path, content: ConfFile) -> Iterator[tuple[str, str, str]]:
    return ((f"{path}:{line}", rule, text) for line, rule, text in content.oddities)


def _from_script(text: str, returns: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Return assignments, the last one of each name. `returns` keeps a carriage return in a value, as a shell does."""
    variables: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r")
        if line.lstrip().startswith("#") and not line.startswith("#SBATCH"):
            continue
        for match in (*_TEXT["assigned"].finditer(line), *filter(None, [_TEXT["docker"].match(line)])):
            value = match["value"].strip()
            if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
                computed = value[0] == '"' and ("$" in value or "`" in value)
                value = value[1:-1]
            else:
                computed = "$" in value or "`" in value
            if returns and match.end() < len(whole) and match.end() == len(line) and not _TEXT["image"].match(line):
                value += "\r"
            variables[match["name"]], lines[match["name"]] = "" if computed else value, number
    return variables, lines


def _walk(whole: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs from mappings, Kubernetes' `{name, value}` and `NAME=value` in lists."""
    waiting: list[Any] = [whole]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            name = value.get("name")
            if isinstance(name, str) and name.startswith(PREFIXES) and "value" in value:
                yield name, _text(value["value"])
            for key, below in value.items():
                if isinstance(key, str) and key.startswith(PREFIXES) and not isinstance(below, dict | list):
                    yield key, _text(below)
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, str) and value.startswith(PREFIXES) and "=" in value:
            key, _, rest = value.partition("=")
            if _TEXT["name"].fullmatch(key):
                yield key, _text(rest)


def _text(value: Any) -> str:
    """Return a YAML value as an environment variable's text; empty if it contains a template."""
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return "" if _TEXT["template"].search(text) or "${" in text or "$(" in text else text
