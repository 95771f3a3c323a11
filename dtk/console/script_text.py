"""Quotes the user's texts inside scripts and manifests: each stays one argument. Knows no launcher."""

import re
import shlex
from typing import Any

import yaml

from dtk.errors import DtkError

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_PLAIN_OPTION = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]~^&|*-]+")
_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*")
_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def check_line(text: str, key: str) -> str:
    """Return a single line without control characters; DtkError if it would begin another line of a script."""
    if _CONTROL.search(text):
        raise DtkError(f"{key} has a line break or a control character in it", fix="write it in one line")
    return text


def check_form(text: object, form: re.Pattern[str], key: str, what: str, fix: str) -> str:
    """Return the value of a key as the cluster reads it, if it has that form; DtkError if it is not `what`."""
    if not form.fullmatch(line := check_line(str(text), key)):
        raise DtkError(f"{key}={line} is not {what}", fix=f"use {fix}")
    return line


def shell(*arguments: object) -> str:
    """Return one command line of a POSIX shell; DtkError if a text holds a zero byte, which no argument can."""
    line = " ".join(shlex.quote(str(argument)) for argument in arguments)
    if "\0" in line:
        raise DtkError(f"{line} has a zero byte in it", fix="leave it out")
    return line


def sbatch_option(name: str, value: object) -> str:
    """Return `#SBATCH --name=value`, quoted for sbatch, not a shell; DtkError if the value has a line break."""
    text = check_line(str(value), f"the value of --{name}")
    if not _PLAIN_OPTION.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"


def sbatch_word(option: str) -> str:
    """Return an option of `launcher.extra` as an #SBATCH line; DtkError if it is not a long option on one line."""
    name, equals, value = check_line(option, "launcher.extra").partition("=")
    if not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
        raise DtkError(f"launcher.extra: {option} is not an option", fix="write --name or --name=value, one per entry")
    return sbatch_option(name[2:], value) if equals else f"#SBATCH {name}"


def kubernetes_argument(text: object) -> str:
    """Escape an argument or value so that Kubernetes expands no `$(NAME)` in it; `$$` stands for a dollar sign."""
    return str(text).replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """YAML that 1.1 and 1.2 readers take alike: what is not plainly a word is quoted, several lines are a block."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write aliases out in full."""
        return True


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style: str | None = '"'
    if "\n" in text:
        style = "|"
    elif _PLAIN_YAML.fullmatch(text) and text.lower() not in _YAML_WORDS:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def as_yaml(*documents: dict[str, Any]) -> str:
    """Return YAML documents, in the order of their keys."""
    text = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=10_000, explicit_start=len(documents) > 1
    )
    return str(text)
