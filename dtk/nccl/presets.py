"""The presets of conf/nccl as values: variables and reasons. Reads YAML without Hydra; sets nothing."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.catalogue import catalogue, version_text
from diagnostics.contract.files import read_record
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.config.folders import groups, search_path
from dtk.config.help import description
from dtk.config.schema import NCCLConfig
from dtk.config.strict import section_from_plain
from dtk.errors import DtkError, refused

GROUP = "nccl"
DEFAULT = "auto"
WHOLE = "preset"  # Key of `about` that applies to all variables.
ABOUT = ("why", "source", "versions", "harms", "remove")  # Keys that describe a variable.
ABOUT_WHOLE = ("source", "versions", "harms", "remove", "advice", "tune")  # Keys that describe a preset.
ELSEWHERE = "read by a plugin or another library, not by NCCL"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable of a preset."""

    name: str
    value: str
    """The value in the file, with placeholders such as `{interface}`."""
    why: str
    source: str
    versions: str
    """Versions of NCCL that read the variable."""
    harms: str
    """When the variable is harmful."""
    remove: str
    """When to remove the variable."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One file of conf/nccl."""

    name: str
    summary: str
    path: Path
    config: NCCLConfig
    settings: tuple[Setting, ...]

    @property
    def about(self) -> dict[str, str]:
        """Facts about the whole preset."""
        return self.config.about.get(WHOLE, {})


def read_presets(config_dir: Path | None = None) -> dict[str, Preset]:
    """Return all presets by name, both built-in and custom; DtkError if a file is damaged."""
    presets, problems = readable_presets(config_dir)
    for problem in problems.values():
        raise problem
    return presets


def readable_presets(config_dir: Path | None = None) -> tuple[dict[str, Preset], dict[str, DtkError]]:
    """Return the presets by name, and the errors of damaged ones; DtkError if there is no such folder."""
    paths = groups(search_path(config_dir)).get(GROUP, {})
    presets: dict[str, Preset] = {}
    problems: dict[str, DtkError] = {}
    try:
        common = _about_of_default(paths)
    except DtkError:  # Reported below, where the default preset itself is read.
        common = {}
    for name, path in paths.items():
        try:
            presets[name] = _read(path, common)
        except DtkError as error:
            problems[name] = error
    return presets, problems


def find_preset(name: str, config_dir: Path | None = None) -> Preset:
    """Return one preset; DtkError if the preset does not exist, or its file is damaged."""
    paths = groups(search_path(config_dir)).get(GROUP, {})
    if name not in paths:
        raise DtkError(f'there is no preset "{name}"', fix=did_you_mean(name, paths) or f"presets: {', '.join(paths)}")
    return _read(paths[name], _about_of_default(paths))


def _about_of_default(paths: dict[str, Path]) -> dict[tuple[str, str], dict[str, str]]:
    """Return (variable, value) of the default preset -> its description; other presets need not repeat it."""
    if DEFAULT not in paths:
        return {}
    default = _read(paths[DEFAULT], {})
    return {(s.name, s.value): asdict(s) for s in default.settings if s.name in default.config.about}


def _read(path: Path, common: dict[tuple[str, str], dict[str, str]]) -> Preset:
    """Read and check a preset; raise DtkError if its file cannot be read or is not an `nccl` section."""
    with refused(f"cannot read {path}", "", ValueError):
        values: Any = load_yaml(read_record(path), Limits())
    try:
        config: NCCLConfig = section_from_plain(NCCLConfig, values, GROUP)
    except DtkError as error:
        raise DtkError(f"{path}: {error.what}", error.why, error.fix) from error
    for name, texts in config.about.items():
        allowed = ABOUT_WHOLE if name == WHOLE else ABOUT
        if name != WHOLE and name not in config.variables:
            raise DtkError(f"{path}: about.{name} is about a variable that the preset does not set")
        for key in texts:
            if key not in allowed:
                raise DtkError(f"{path}: unknown key about.{name}.{key}", fix=f"keys: {', '.join(allowed)}")
    whole = {key: text for key, text in config.about.get(WHOLE, {}).items() if key in ABOUT}
    settings = []
    for name, value in config.variables.items():
        texts_of = {**whole, **config.about[name]} if name in config.about else common.get((name, value), whole)
        variable = catalogue().nccl.get(name)  # The linter knows which releases read the variable.
        read_by = f"NCCL {version_text(variable.since)} and newer" if variable and variable.since else ""
        versions = config.about.get(name, {}).get("versions") or read_by or texts_of.get("versions") or ELSEWHERE
        texts = {key: texts_of.get(key, "") for key in ABOUT if key != "versions"}
        settings.append(Setting(name=name, value=value, versions=versions, **texts))
    return Preset(path.stem, description(path), path, config, tuple(settings))
