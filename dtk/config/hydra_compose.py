"""Hydra's compose API, with errors as one line, and the file or override that sets each key (`dtk show RUN --why KEY`).
No other module calls Hydra to compose; independent of the schema.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar

import hydra
import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from diagnostics.contract.origins import LONGEST, Choice, Kind, Origins, Setting, add_typed, flat
from diagnostics.evidence.budget import OverBudgetError, budget
from diagnostics.evidence.limits import Limits, checked_text
from dtk.config.overrides import SWEPT, refuse_hydra
from dtk.errors import DtkError, refused

_LIMITS = Limits(seconds=20)  # Composing takes 0.3 s; defaults lists and references may stand for any number of values.
_LOCK = RLock()  # Hydra's state is global, so one thread composes at a time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UserFolders(SearchPathPlugin):
    """Puts the user's folders before dtk's. `hydra.searchpath` could only append them."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Prepend the user's folders; called by Hydra whenever it builds a search path."""
        for folder in self.folders:
            search_path.prepend(provider="dtk", path=f"{UserFiles.scheme()}://{folder}", anchor="main")


class UserFiles(FileConfigSource):
    """A user's folder: each file is checked before Hydra loads it."""

    @staticmethod
    def scheme() -> str:
        """Return the name of this kind of folder in a search path."""
        return "checked"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file; DtkError if it is damaged or describes too much."""
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.is_file():
            with refused(str(path), "", ValueError):
                checked_text(path)
        return super().load_config(config_path)


Plugins.instance().register(UserFolders)
Plugins.instance().register(UserFiles)


@dataclass(frozen=True, slots=True)
class Merged:
    """The inputs that Hydra merges."""

    @dataclass(frozen=True, slots=True)
    class File:
        """One YAML file."""

        config: str
        """Config name, such as `strategy/ddp`."""
        package: str
        """Dotted package of its keys; empty for the root."""
        group: str
        """The group of the option; empty for config.yaml itself."""
        chosen_in: str
        """The file that selects it, such as `config`."""

    files: list[File]
    """Files in merge order."""
    typed_choices: dict[str, str]
    """Group -> override that selected its option."""
    values: list[Override]
    """All other overrides, in order."""


def compose_plain(overrides: Sequence[str], folders: Sequence[Path], main: str) -> dict[str, Any]:
    """Return plain values of the main file with overrides, all interpolations resolved.

    Folders are absolute and in search order; the last one is dtk's.

    DtkError if Hydra, OmegaConf or YAML raised an error.
    """
    with _ready(folders):
        composed = hydra.compose(main, overrides=list(overrides))
        plain = OmegaConf.to_container(composed, resolve=True)
    if not isinstance(plain, dict):
        raise DtkError(f"{main}.yaml is not a mapping of keys")
    return {str(key): value for key, value in plain.items()}


def swept(overrides: Sequence[str], folders: Sequence[Path], main: str) -> dict[str, Any]:
    """Return `hydra.sweeper.params` of the files: key -> list, such as `ddp,fsdp`. Arguments as for `compose_plain`."""
    with _ready(folders):
        sweeper = hydra.compose(main, overrides=list(overrides), return_hydra_config=True).hydra.sweeper
        return dict(sweeper.get("params") or {})


def merged(overrides: Sequence[str], folders: Sequence[Path], main: str) -> Merged:
    """Return the files and values that `compose_plain` merges, as Hydra's `--info defaults` does; DtkError as there."""
    with _ready(folders):
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list(main, list(overrides), RunMode.RUN)
    about = defaults.overrides.override_metadata
    files = []
    for part in defaults.defaults:
        group = part.override_key or ""
        if part.config_path is None or group.startswith("hydra/") or part.config_path.startswith("hydra/"):
            continue
        where = about[group].containing_config_path if group in about else None
        files.append(Merged.File(part.config_path, part.package or "", group, where or part.parent or ""))
    external = {group for group, metadata in about.items() if metadata.external_override}
    choices = {text.lstrip("+").split("=")[0]: text.lstrip("+") for text in overrides}
    typed = {group: text for group, text in choices.items() if group in external}
    return Merged(files, typed, list(defaults.config_overrides))


@contextmanager
def _ready(folders: Sequence[Path]) -> Iterator[None]:
    """Initialize Hydra with these folders for a block; convert its errors to DtkError."""
    *own, primary = folders
    # Hydra 1.3 warns if version_base is missing, 1.4 if it is given.
    version: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3") else {}
    _LOCK.acquire()
    try:
        GlobalHydra.instance().clear()
        UserFolders.folders = own
        with hydra.initialize_config_dir(str(primary), job_name="dtk", **version), budget(_LIMITS, 1):
            yield
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, OSError, RecursionError) as error:
        raise _translate(error) from error
    finally:
        UserFolders.folders = ()
        _LOCK.release()


def _translate(error: BaseException) -> DtkError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OverBudgetError | RecursionError):
            why = "its defaults lists or references (${...}) are circular or expand to too much"
            return DtkError("the configuration cannot be composed", why)
        cause = cause.__cause__ or cause.__context__
    # Hydra's message continues with its search path, and suggests + for unknown keys, which dtk does not allow.
    lines = []
    for line in str(error).splitlines():
        if line.startswith(("Config search path", "See ", "Set the environment")):
            break
        if not any(noise in line for noise in ("append", "full_key", "object_type")):
            lines.append(line)
    return DtkError("the configuration cannot be composed", " ".join(" ".join(lines).split()))


def trace(arguments: Sequence[str], folders: Sequence[Path], main: str, plain: dict[str, Any]) -> Origins:
    """Trace the origins of all keys.

    Folders are in search order; the last one is dtk's.

    DtkError if Hydra cannot list the files, or one has a Hydra setting that dtk does not support.
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
            root = yaml.compose(checked_text(path), Loader=_LOADER)
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
