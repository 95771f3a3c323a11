"""Composes overrides into a checked Config, in the parent only. Never imports torch; imports Hydra when called."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.contract.files import read_json
from diagnostics.contract.origins import Origins
from dtk.config.folders import groups, main_file, search_path
from dtk.config.folders import source_tree as source_tree
from dtk.config.overrides import expand_sweep, normalise, parse
from dtk.config.schema import Config
from dtk.config.strict import MISSING, from_plain, to_plain
from dtk.errors import DtkError

_PATHS = (
    ("runs_folder",), ("resume",), ("model", "pretrained"), ("model", "path"), ("data", "path"), ("data", "tokenizer"),
    ("strategy", "offload_folder"), ("strategy", "config"),
)  # fmt: skip
_SIZES = {"vocab_size": ("vocab_size",), "context_length": ("max_position_embeddings", "n_positions")}
"""Keys of model=hf that are 0 where they are to be read -> their names in transformers' config.json."""
_TOKENIZERS = ("byte", "gpt2")  # Names that are no paths.


@dataclass(frozen=True, slots=True)
class Composed:
    """One point: typed, plain (every key), and what was typed to get it."""

    config: Config
    plain: dict[str, Any]
    overrides: list[str]
    origins: Origins = field(default_factory=Origins)
    """Which file or override set each key, where that was asked for."""

    def with_train(self, **values: int) -> "Composed":
        """Return the same with other values of the section train."""
        config = replace(self.config, train=replace(self.config.train, **values))  # type: ignore[arg-type]
        return replace(self, config=config, plain=to_plain(config))


def compose(overrides: list[str], config_dir: Path | None = None, *, traced: bool = False) -> Composed:
    """Compose conf/config.yaml with overrides and check keys and types.

    Args:
        overrides: in Hydra's grammar: `strategy=ddp`, `train.steps=5`.
        config_dir: the user's own YAML files, which hide dtk's files of the same group and name; or a main file of
            theirs, `DIR/NAME.yaml`.
        traced: find out the origin of every key as well, which takes half as long again.

    Raises:
        DtkError: anything wrong in an override or a YAML file, as one line.
    """
    sources = _sources(overrides, config_dir)
    from dtk.config.hydra_compose import compose_plain

    plain = compose_plain(*sources)
    for keys in _PATHS:
        make_absolute(plain, keys)
    _read_sizes(plain.get("model"))
    config = from_plain(plain)
    plain = to_plain(config)
    if not traced:
        return Composed(config, plain, list(overrides))
    from dtk.config.origins import trace

    return Composed(config, plain, list(overrides), trace(*sources, plain))


def expand(overrides: list[str], config_dir: Path | None = None) -> list[list[str]]:
    """Return the overrides of every point of a sweep (`-m`), which is a single point if no override is a list.

    Raises:
        DtkError: see `expand_sweep`.
    """
    return expand_sweep(overrides, groups(search_path(config_dir)))


def _sources(overrides: list[str], config_dir: Path | None) -> tuple[list[str], list[Path], str]:
    """Return what Hydra composes: overrides as it is to receive them, folders, and the name of the main file."""
    folders = search_path(config_dir)
    return normalise(overrides, groups(folders), list(groups(folders[-1:]))), folders, main_file(config_dir)


def lists_of_files(overrides: list[str], config_dir: Path | None = None) -> list[str]:
    """Return the lists that the files add to those that were typed for `-m`: `hydra.sweeper.params`.

    Raises:
        DtkError: as `compose`, and for params that are no mapping.
    """
    from dtk.config.hydra_compose import swept

    parsed = {text: parse(text) for text in overrides}
    params = swept(*_sources([text for text, each in parsed.items() if not each.is_sweep_override()], config_dir))
    typed = {each.key_or_group for each in parsed.values()}
    return [f"{key}={value}" for key, value in params.items() if key not in typed]


def files_merged(overrides: list[str], config_dir: Path | None = None) -> str:
    """Return the search path and the files in the order of merging, as text for `--info`."""
    from dtk.config.hydra_compose import merged

    sources = _sources(overrides, config_dir)
    rows = [
        (part.config, part.package or "(all)", part.chosen_in.replace("<root>", "-")) for part in merged(*sources).files
    ]
    rows = [("file", "sets keys of", "chosen in"), *rows]
    wide, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{file:<{wide}}  {package:<{middle}}  {by}" for file, package, by in rows]
    return "\n".join(["searched, in this order:", *(f"  {path}" for path in sources[1]), "", *lines]) + "\n"


def without_reasons(composed: Composed) -> Composed:
    """Return the configuration as a run folder stores it, without the reasons for NCCL's variables."""
    config = replace(composed.config, nccl=replace(composed.config.nccl, about={}))
    return replace(composed, config=config, plain=to_plain(config))


def _read_sizes(model: Any) -> None:
    """Fill in the sizes of a transformers model from its folder, where they are 0."""
    unknown = [key for key in _SIZES if isinstance(model, dict) and model.get(key) == 0]
    if not unknown or model.get("path") in (None, MISSING):
        return
    path = Path(model["path"]) / "config.json"
    try:
        stored = dict(read_json(path, follow=True))  # Hubs link to files of theirs.
        for key in unknown:
            model[key] = next(stored[name] for name in _SIZES[key] if name in stored)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it is not a config.json of transformers"
        raise DtkError(f"{path} cannot be read", why, "model.path=FOLDER that save_pretrained wrote") from error
    except StopIteration:
        raise DtkError(f"{path} does not say model.{key}", fix=f"set it: model.{key}=N") from None


def make_absolute(plain: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Replace one relative path, so that a rank in another working directory finds it; other keys stay."""
    if keys not in _PATHS:
        return
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
    # With data=hf a name that is no file here is that of a dataset on the Hugging Face hub.
    on_hub = section.get("name") == "hf" and not path.is_absolute() and not path.exists()
    named = value in _TOKENIZERS if dotted == "data.tokenizer" else on_hub
    if not named:
        section[keys[-1]] = str(path.absolute())
