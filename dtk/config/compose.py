"""Composes overrides into a checked Config, in the parent only. Never imports torch; imports Hydra on demand."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.contract.files import read_json
from diagnostics.contract.origins import Origins, at_key
from dtk.config.folders import MAIN, groups, search_path, source_tree as source_tree
from dtk.config.overrides import expand_sweep, normalise, parse
from dtk.config.schema import Config
from dtk.config.strict import MISSING, from_plain, to_plain
from dtk.console.output import rendered
from dtk.errors import DtkError

_PATHS = (
    "runs_folder", "resume", "model.pretrained", "model.path", "data.path", "data.tokenizer", "strategy.offload_folder",
    "strategy.config",
)  # fmt: skip
_SIZES = {"vocab_size": ("vocab_size",), "context_length": ("max_position_embeddings", "n_positions")}
"""Keys of model=hf that are read from transformers' config.json if they are 0 -> their names in it."""
_TOKENIZERS = ("byte", "gpt2")  # Names that are not paths.


@dataclass(frozen=True, slots=True)
class Composed:
    """One composed point and its overrides."""

    config: Config
    overrides: list[str]
    origins: Origins = field(default_factory=Origins)
    """The file or override that set each key, if traced."""

    @property
    def plain(self) -> dict[str, Any]:
        """Every key of the configuration as plain values; a new copy each time."""
        return to_plain(self.config)

    def with_train(self, **values: int | None) -> "Composed":
        """Return a copy with changed values in the `train` section."""
        train = replace(self.config.train, **values)  # type: ignore[arg-type]
        return replace(self, config=replace(self.config, train=train))


def compose(overrides: list[str], config_dir: Path | None = None, *, traced: bool = False) -> Composed:
    """Compose conf/config.yaml with overrides and check keys and types.

    `config_dir` holds custom YAML files, which override dtk's of the same group and name, or is a custom main file,
    `DIR/NAME.yaml`. `traced`: also the origin of every key, in 50% more time. DtkError if a text or file is invalid.
    """
    sources = _sources(overrides, config_dir)
    from dtk.config.hydra_compose import compose_plain, trace

    plain = compose_plain(*sources)
    for key in _PATHS:
        make_absolute(plain, key)
    _read_sizes(plain.get("model"))
    composed = Composed(from_plain(plain), list(overrides))
    if not traced:
        return composed
    return replace(composed, origins=trace(*sources, composed.plain))


def expand(overrides: list[str], config_dir: Path | None = None) -> list[list[str]]:
    """Return the overrides of every point of a sweep (`-m`), at least one; DtkError as in `expand_sweep`."""
    return expand_sweep(overrides, groups(search_path(config_dir)))


def _sources(overrides: list[str], config_dir: Path | None) -> tuple[list[str], list[Path], str]:
    """Return Hydra's input: normalised overrides, folders, and the name of the main file, as of `--config-name`."""
    folders = search_path(config_dir)
    main_file = config_dir.stem if config_dir is not None and config_dir.suffix == ".yaml" else MAIN
    return normalise(overrides, groups(folders), list(groups(folders[-1:]))), folders, main_file


def lists_of_files(overrides: list[str], config_dir: Path | None = None) -> list[str]:
    """Return the lists in `hydra.sweeper.params` of the files, which `-m` sweeps in addition to the typed ones;
    DtkError if as `compose`, and for params that are not a mapping.
    """
    from dtk.config.hydra_compose import swept

    parsed = {text: parse(text) for text in overrides}
    params = swept(*_sources([text for text, each in parsed.items() if not each.is_sweep_override()], config_dir))
    typed = {each.key_or_group for each in parsed.values()}
    return [f"{key}={value}" for key, value in params.items() if key not in typed]


def files_merged(overrides: list[str], config_dir: Path | None = None) -> str:
    """Return the search path and the files in merge order, as text for `--info`."""
    from diagnostics.report import document as doc
    from dtk.config.hydra_compose import merged

    sources = _sources(overrides, config_dir)
    rows = [
        (part.config, part.package or "(all)", part.chosen_in.replace("<root>", "-")) for part in merged(*sources).files
    ]
    searched = doc.Items(tuple(str(path) for path in sources[1]))
    merged_files = doc.Section("", (doc.table([("file", "sets keys of", "chosen in"), *rows]),))
    return rendered(doc.Document("", "searched, in this order:", (searched, merged_files)))


def _read_sizes(model: Any) -> None:
    unknown = [key for key in _SIZES if isinstance(model, dict) and model.get(key) == 0]
    if not unknown or model.get("path") in (None, MISSING):
        return
    path = Path(model["path"]) / "config.json"
    try:
        stored = dict(read_json(path, follow=True))  # Hubs link to their files.
        for key in unknown:
            model[key] = next(stored[name] for name in _SIZES[key] if name in stored)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it is not a config.json of transformers"
        raise DtkError(f"{path} cannot be read", why, "model.path=FOLDER that save_pretrained wrote") from error
    except StopIteration:
        raise DtkError(f"{path} does not say model.{key}", fix=f"set it: model.{key}=N") from None


def make_absolute(plain: dict[str, Any], key: str) -> None:
    """Make a relative path absolute, so that a rank in another working directory finds it; other keys stay."""
    value = at_key(plain, key)
    if key not in _PATHS or not isinstance(value, str) or value in (MISSING, "None"):
        return
    if not value:
        raise DtkError(f"{key} is empty", fix=f"write {key}=PATH")
    of_section, _, name = key.rpartition(".")
    section = plain[of_section] if of_section else plain
    path = Path(value).expanduser()
    # With data=hf a name that is not a file here is that of a dataset on the Hugging Face hub.
    on_hub = section.get("name") == "hf" and not path.is_absolute() and not path.exists()
    named = value in _TOKENIZERS if key == "data.tokenizer" else on_hub
    if not named:
        section[name] = str(path.absolute())
