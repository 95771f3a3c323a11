"""The file or override that sets each key of a composed configuration, for `dtk show RUN --why KEY`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from diagnostics.contract.origins import LONGEST, Choice, Kind, Origins, Setting, add_typed, flat
from diagnostics.evidence import safe_yaml
from dtk.config.hydra_compose import merged
from dtk.config.overrides import SWEPT, refuse_hydra
from dtk.errors import refused

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def trace(arguments: Sequence[str], folders: Sequence[Path], main: str, plain: dict[str, Any]) -> Origins:
    """Trace the origins of all keys.

    Folders are in search order; the last one is dtk's.

    Raises:
        DtkError: Hydra cannot list the files, or one has a Hydra setting that dtk does not support.
    """
    sources = merged(arguments, folders, main)
    origins = Origins(values=flat(plain))
    for part in sources.files:
        path = _file(part.config, folders)
        if path is None:
            continue
        path_text = _shown(path, folders)
        if part.group:
            kind: Kind = "typed" if part.group in sources.typed_choices else "file"
            by = sources.typed_choices.get(part.group, part.chosen_in)
            if kind == "file" and (chooser := _file(part.chosen_in, folders)) is not None:
                by = _shown(chooser, folders)
            origins.choices[part.group] = Choice(path.stem, path_text, kind, by)
        with refused(f"cannot read {path}", "", ValueError):
            root = yaml.compose(safe_yaml.text_of(path), Loader=_LOADER)
        for key, line, written in _leaves(root, ""):
            if key.split(".")[0] == "defaults":
                continue
            name = f"{part.package}.{key}" if part.package else key
            if not name.startswith(SWEPT):
                refuse_hydra(name, f" in {path_text}:{line}")
            origins.keys.setdefault(name, []).append(Setting("file", f"{path_text}:{line}", written))
    for override in sources.values:
        add_typed(origins, override.key_or_group, (override.input_line or "").removeprefix("++"), override.is_delete())
    return origins


def _file(config: str, folders: Sequence[Path]) -> Path | None:
    """Return the file that Hydra read for a name such as `strategy/ddp`."""
    return next((path for folder in folders if (path := folder / f"{config}.yaml").is_file()), None)


def _shown(path: Path, folders: Sequence[Path]) -> str:
    """Return `conf/strategy/ddp.yaml` for dtk's files, and the whole path for the user's."""
    own = folders[-1]
    return f"conf/{path.relative_to(own)}" if path.is_relative_to(own) else str(path)


def _leaves(node: Any, prefix: str) -> list[tuple[str, int, str]]:
    if isinstance(node, yaml.MappingNode) and (node.value or not prefix):
        return [leaf for key, value in node.value for leaf in _leaves(value, f"{prefix}.{key.value}".lstrip("."))]
    return [] if node is None else [(prefix, node.start_mark.line + 1, _written(node)[:LONGEST])]


def _written(node: Any) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(_written(item) for item in node.value)}]"
    return "{" + ", ".join(f"{_written(key)}: {_written(value)}" for key, value in node.value) + "}"
