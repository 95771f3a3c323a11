"""Reads the YAML of a sweep file: bounded, and nothing that YAML lets pass in silence. Knows no key of a sweep."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.files import read_record
from diagnostics.evidence import safe_yaml
from diagnostics.evidence.limits import Limits
from dtk.errors import DtkError, refused

MOST_BYTES = 300_000  # Read in seconds; ten thousand values, which is the most, take less.
_DEEPEST = 20  # Levels of brackets.


def load(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds, with its keys as text.

    Raises:
        DtkError: it is no regular file of a bearable size, no YAML, or gives a key twice.
    """
    if path.is_dir():
        raise DtkError(f"{path} is a folder, no sweep file", fix="name a YAML file in it")
    try:
        with refused(f"cannot read {path}"):
            data = read_record(path, MOST_BYTES)
    except ValueError as error:
        raise DtkError(f"{path} is no sweep file", f"it has more than {MOST_BYTES:,} bytes") from error
    try:
        safe_yaml.loads(data, Limits(depth=_DEEPEST))
        content = yaml.load(data, Loader=_OnceLoader)  # noqa: S506 - a SafeLoader
    except (ValueError, yaml.MarkedYAMLError) as error:
        marked = error.__cause__ or error
        mark, what = getattr(marked, "problem_mark", None), getattr(marked, "problem", None) or str(error)
        line = f", line {mark.line + 1}" if mark else ""
        why = f"not valid YAML ({' '.join(what.split())[:200]})"
        raise DtkError(f"{path}{line}", why, "see conf/sweep/ for some") from error
    if not isinstance(content, dict):
        raise DtkError(f"{path} is no sweep file", "it is no mapping of keys", "see conf/sweep/ for some")
    return {str(key): value for key, value in content.items()}


class _OnceLoader(yaml.SafeLoader):
    """A safe loader for which a key that is given twice is no choice of the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                twice = f'the key "{key_node.value[:60]}" is there twice'
                raise yaml.constructor.ConstructorError(None, None, twice, key_node.start_mark)
            seen.add(key)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made
