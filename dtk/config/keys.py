"""Documentation of configuration keys: type and default from the schema, text from the YAML file beside it.

Texts of a strategy's own keys are comments next to them in conf/strategy/.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from diagnostics.contract.files import read_table
from diagnostics.contract.formatting import sentence
from diagnostics.contract.grouping import grouped
from dtk.config.folders import conf_folder
from dtk.config.schema import KINDS, Config
from dtk.sharding.registry import CONFIG_TYPES

_COMMENTED = re.compile(r"^(?P<key>\w+): .*? # (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Key:
    """A key for one kind of its section."""

    name: str
    """`train.micro_batch_size`."""
    kind: str
    """Values of the discriminating key for which it exists: `strategy=ddp`; empty if always."""
    type: str
    default: str
    """Default in the schema, which files in conf/ may override. Empty if required."""
    about: str


def keys() -> Iterator[Key]:
    """Yield every key, section by section; keys shared by several kinds of a section once per distinct text."""
    hints = get_type_hints(Config)
    for field in fields(Config):
        kinds = KINDS[field.name][1] if field.name in KINDS else {}
        sections = grouped((section, value) for value, section in kinds.items())
        if is_dataclass(hints[field.name]):
            sections[hints[field.name]] = []
        if not sections:
            yield _key("", field, hints[field.name], _texts(Config), "")
        for section, values in sections.items():
            kind = f"{field.name}={'|'.join(values)}" if len(sections) > 1 else ""
            of_section = get_type_hints(section)
            for key in fields(section):
                yield _key(f"{field.name}.", key, of_section[key.name], _texts(section), kind)


def _key(prefix: str, field: Any, kind_of_value: Any, texts: dict[str, str], kind: str) -> Key:
    default = field.default if field.default is not MISSING else field.default_factory
    value = default() if callable(default) else default
    shown = "" if value is MISSING else yaml.safe_dump(value, default_flow_style=True).removesuffix("\n")
    typed = kind_of_value.__name__ if type(kind_of_value) is type else str(kind_of_value)
    typed = typed.replace("typing.", "").replace("None", "null").replace(" | ", " or ")
    return Key(prefix + field.name, kind, typed, shown.removesuffix("\n..."), texts.get(field.name, ""))


@cache
def _texts(section: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for cls in reversed(section.__mro__[:-1]):
        module = Path(inspect.getfile(cls))
        if module.stem in CONFIG_TYPES and issubclass(cls, CONFIG_TYPES[module.stem]):
            file = conf_folder() / "strategy" / f"{module.stem}.yaml"
            comments = _COMMENTED.finditer(file.read_text(encoding="utf-8"))
            texts |= {of["key"]: f"{sentence(of['text'])}." for of in comments if of["key"] in cls.__annotations__}
        elif (path := module.with_suffix(".yaml")).is_file():
            texts |= read_table(path).get("keys", {}).get(cls.__name__, {})
    return texts
