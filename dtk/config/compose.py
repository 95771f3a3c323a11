"""From overrides to a checked Config: the only module that lets Hydra compose. Knows no torch.

Called once, in the parent: paths become absolute against its working directory, interpolations
are resolved, and what comes out is plain values that a rank reads without Hydra.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtk.config.folders import groups, search_path
from dtk.config.folders import source_tree as source_tree
from dtk.config.overrides import expand_sweep, normalise
from dtk.config.schema import Config
from dtk.config.strict import MISSING, from_plain, to_plain
from dtk.errors import DtkError

_PATHS = (("runs_folder",), ("resume",), ("model", "pretrained"), ("data", "path"), ("data", "tokenizer"))
_TOKENIZERS = ("byte", "gpt2")
"""Names that are no paths."""


@dataclass(frozen=True, slots=True)
class Composed:
    """One point: typed, plain (every key), and what was typed to get it."""

    config: Config
    plain: dict[str, Any]
    overrides: list[str]


def compose(overrides: list[str], config_dir: Path | None = None) -> Composed:
    """Compose conf/config.yaml with overrides and check keys and types.

    Args:
        overrides: in Hydra's grammar: `strategy=ddp`, `train.steps=5`.
        config_dir: the user's own YAML files; they hide dtk's files of the same group and name.

    Raises:
        DtkError: anything wrong in an override or a YAML file, as one line.
    """
    folders = search_path(config_dir)
    found = groups(folders)
    arguments = normalise(overrides, found, list(groups(folders[-1:])))
    plain = _compose(arguments, folders)
    for keys in _PATHS:
        _make_absolute(plain, keys)
    config = from_plain(plain)
    return Composed(config, to_plain(config), list(overrides))


def expand(overrides: list[str], config_dir: Path | None = None) -> list[list[str]]:
    """The overrides of every point of a sweep (`-m`); without lists one point.

    Raises:
        DtkError: see `expand_sweep`.
    """
    return expand_sweep(overrides, groups(search_path(config_dir)))


def _compose(arguments: list[str], folders: list[Path]) -> dict[str, Any]:
    """Plain values from Hydra's compose API, all interpolations resolved."""
    import hydra
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    # The first folder is Hydra's primary one, which goes before any search path.
    others = ", ".join('"file://' + str(folder).replace('"', '\\"') + '"' for folder in folders[1:])
    extra = [f"hydra.searchpath=[{others}]"] if others else []
    # 1.3 warns when version_base is left out, 1.4 when it is given.
    version: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3") else {}
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folders[0]), job_name="dtk", **version):
            composed = hydra_compose("config", overrides=arguments + extra)
        plain = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        raise _translate(error) from error
    if not isinstance(plain, dict):
        raise DtkError("config.yaml is not a mapping of keys")
    return {str(key): value for key, value in plain.items()}


def _translate(error: BaseException) -> DtkError:
    """What Hydra, OmegaConf or YAML say, as one line."""
    cause: BaseException | None = error
    while cause is not None:
        mark = getattr(cause, "problem_mark", None)
        if mark is not None:
            problem = getattr(cause, "problem", None) or "broken"
            return DtkError(f"{mark.name}, line {mark.line + 1}", f"not valid YAML ({problem})")
        if isinstance(cause, UnicodeDecodeError):
            return DtkError("a YAML file is not UTF-8 text", str(cause))
        cause = cause.__cause__ or cause.__context__
    # Hydra goes on with its search path, and advises + for unknown keys, which dtk does not allow.
    lines = []
    for line in str(error).splitlines():
        if line.startswith(("Config search path", "See ", "Set the environment")):
            break
        if "append" not in line and "full_key" not in line and "object_type" not in line:
            lines.append(line)
    return DtkError("the configuration cannot be composed", " ".join(" ".join(lines).split()))


def _make_absolute(plain: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Replace one relative path, so that a rank in another working directory finds it."""
    section: Any = plain
    for key in keys[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    value = section.get(keys[-1]) if isinstance(section, dict) else None
    if not isinstance(value, str) or value in (MISSING, "None"):
        return
    dotted = ".".join(keys)
    if not value:
        raise DtkError(f"{dotted} is empty", fix=f"write {dotted}=PATH")
    path = Path(value).expanduser()
    named = value in _TOKENIZERS if dotted == "data.tokenizer" else _is_hub_name(section, path)
    if not named:
        section[keys[-1]] = str(path.absolute())


def _is_hub_name(section: dict[str, Any], path: Path) -> bool:
    """Whether `data.path` names a dataset on the Hugging Face hub: `data=hf` and no such file here."""
    return section.get("name") == "hf" and not path.is_absolute() and not path.exists()
