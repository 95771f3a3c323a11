"""Reads the YAML of a sweep file: bounded, and nothing that YAML lets pass in silence. Knows no key of a sweep."""

import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from dtk.errors import DtkError

MOST_BYTES = 300_000
"""Read in seconds; ten thousand values, which is the most, take less."""
_DEEPEST = 20
"""Levels of brackets."""


def load(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds, with its keys as text.

    Raises:
        DtkError: it is no regular file of a bearable size, no YAML, or gives a key twice.
    """
    check_kind(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DtkError(f"{path} is no sweep file", f"it has more than {MOST_BYTES:,} bytes")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise DtkError(f"cannot read {path}", error.strerror or str(error)) from error
    except _TwiceError as error:
        raise DtkError(
            f"{path}, line {error.line}", f'the key "{error.key}" is there twice', "leave one of them"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DtkError(f"{path}{line}", f"not valid YAML ({error.problem})") from error
    except RecursionError as error:
        raise too_deep(path) from error
    except yaml.reader.ReaderError as error:
        raise DtkError(f"{path} is not valid YAML", "it has characters that no text has") from error
    except (yaml.YAMLError, ValueError) as error:
        raise DtkError(f"{path} is not valid YAML", " ".join(str(error).split())[:200]) from error
    if not isinstance(content, dict):
        raise DtkError(f"{path} is no sweep file", "it is no mapping of keys", "see conf/sweep/ for some")
    if _depth_above(content, _DEEPEST):
        raise too_deep(path)
    return {str(key): value for key, value in content.items()}


def is_file(path: Path) -> bool:
    """Whether a regular file is there; what no file system takes for a name is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def check_kind(path: Path) -> None:
    """Refuse a folder, and whatever a read could wait for; a path that is not there passes.

    Raises:
        DtkError: it is there, and no regular file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise DtkError(f"cannot read {str(path)[:200]}", getattr(error, "strerror", None) or str(error)) from error
    if stat.S_ISDIR(mode):
        raise DtkError(f"{path} is a folder, no sweep file", fix="name a YAML file in it")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise DtkError(f"{path} is {kind}, no sweep file", fix="put the sweep into a YAML file")


def too_deep(path: Path) -> DtkError:
    """For a file whose lists or mappings go on and on."""
    return DtkError(f"{path} is no sweep file", "its brackets are nested too deeply", "see conf/sweep/ for some")


class _TwiceError(Exception):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(key)
        self.key = key
        self.line = line


class _OnceLoader(yaml.SafeLoader):
    """A safe loader for which a key that is given twice is no choice of the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise _TwiceError(key_node.value[:60], key_node.start_mark.line + 1)
            seen.add(key)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made


def _depth_above(value: Any, most: int) -> bool:
    """Whether lists and mappings are nested further than that, also where one holds itself."""
    level = [value]
    for _ in range(most):
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = list({id(item): item for item in inner if isinstance(item, dict | list)}.values())
        if not level:
            return False
    return True
