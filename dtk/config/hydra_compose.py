"""Hydra's compose API, and its errors as one line. The only module that lets Hydra compose; knows no schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dtk.errors import DtkError


class UserFolders(SearchPathPlugin):
    """Puts the user's folders before dtk's own. `hydra.searchpath` could only put them behind."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds a search path."""
        for folder in self.folders:
            search_path.prepend(provider="dtk", path=f"file://{folder}", anchor="main")


Plugins.instance().register(UserFolders)


def compose_plain(overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """Plain values of config.yaml with overrides, all interpolations resolved.

    Args:
        overrides: in Hydra's grammar, already normalised.
        folders: absolute, in the order in which a file is looked for; the last one is dtk's own.

    Raises:
        DtkError: whatever Hydra, OmegaConf or YAML object to.
    """
    *own, primary = folders
    # 1.3 warns when version_base is left out, 1.4 when it is given.
    version: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3") else {}
    GlobalHydra.instance().clear()
    UserFolders.folders = own
    try:
        with hydra.initialize_config_dir(str(primary), job_name="dtk", **version):
            composed = hydra.compose("config", overrides=list(overrides))
        plain = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        raise _translate(error) from error
    finally:
        UserFolders.folders = ()
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
        if not any(noise in line for noise in ("append", "full_key", "object_type")):
            lines.append(line)
    return DtkError("the configuration cannot be composed", " ".join(" ".join(lines).split()))
