"""Locations of the YAML files: dtk's own conf/ and the user's folder. Independent of their contents and of Hydra."""

from collections.abc import Sequence
from pathlib import Path

from diagnostics.contract.files import read_record
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.errors import DtkError

_HERE = Path(__file__).resolve()
HARDWARE = "hardware"  # Folder of the hardware descriptions for `dtk plan`; not a config group.
SWEEPS = "sweep"  # Folder of the sweep files for `dtk sweep`; not a config group.


def source_tree() -> Path | None:
    """Return the root of the source tree that this code runs from; None if it is installed."""
    root = _HERE.parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "conf" / "config.yaml").is_file() else None


_GLOBAL = b"# @package _global_"
"""First line of an option that sets keys of several sections."""


def conf_folder() -> Path:
    """Return the folder of dtk's own YAML files: that of the source tree, else the copy inside the installed package;
    DtkError if the installation does not have it.
    """
    root = source_tree()
    folder = root / "conf" if root else _HERE.parents[1] / "conf"
    if not (folder / "config.yaml").is_file():
        raise DtkError(f"dtk's own configuration is missing: no {folder}/config.yaml", fix="reinstall dtk")
    return folder


MAIN = "config"


def search_path(config_dir: Path | None) -> list[Path]:
    """Return absolute folders in search order: the user's first.

    `config_dir` may also be a main file in it. DtkError if the user's folder or main file does not exist.
    """
    own = conf_folder()
    if config_dir is None:
        return [own]
    folder = Path(config_dir).expanduser().absolute()
    if folder.suffix == ".yaml" and not folder.is_dir():
        if not folder.is_file():
            raise DtkError(f"--config-name {folder.stem}", f"there is no {folder}", "name its folder by --config-dir")
        folder = folder.parent
    if not folder.is_dir():
        raise DtkError(f"the configuration folder {config_dir}: there is no such folder")
    return [folder, own]


def groups(folders: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Return group -> option -> file, sorted by name. Earlier folders take precedence."""
    groups: dict[str, dict[str, Path]] = {}
    for folder in reversed(folders):
        for path in sorted(folder.glob("*/*.yaml")):
            if not path.parent.name.startswith(".") and path.parent.name not in (HARDWARE, SWEEPS):
                groups.setdefault(path.parent.name, {})[path.stem] = path
    return {group: dict(sorted(options.items())) for group, options in sorted(groups.items())}


def preset_sections(path: Path | None) -> list[str]:
    """Return the other sections that an option sets, except for a fault, whose settings are needed to observe it."""
    if path is None or path.parent.name == "fault" or not (data := read_record(path)).startswith(_GLOBAL):
        return []
    return [section for section in load_yaml(data, Limits()) if section != path.parent.name]
