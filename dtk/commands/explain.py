"""`dtk explain`: describes a cause, a family of causes, a configuration key, a group, a strategy or an option.

Never imports torch.
"""

import argparse
from collections.abc import Iterator

from diagnostics.contract.formatting import counted
from diagnostics.contract.grouping import grouped
from diagnostics.contract.suggest import did_you_mean
from diagnostics.report import document as doc
from dtk.config.folders import conf_folder, groups
from dtk.config.help import description
from dtk.console.output import put, rendered
from dtk.errors import DtkError

Rows = list[tuple[str, str]]  # Label and text; the first label is the name itself.


def run(arguments: argparse.Namespace) -> int:
    """Print what each name means; DtkError if there is no such name."""
    described, matches = everything(), list[Rows]()
    for name in arguments.names:
        full = [rows for rows in described if name == rows[0][0]]
        last = [rows for rows in described if name in (rows[0][0].partition("=")[2], rows[0][0].rpartition(".")[2])]
        if not full and not last:
            names = {rows[0][0] for rows in described}
            near = did_you_mean(name, names | {whole.rpartition("=")[2] for whole in names})
            lists = "docs/causes.md lists causes, dtk run --help the groups"
            raise DtkError(f'there is no cause, key, strategy or option named "{name}"', fix=near or lists)
        matches += full or last  # Named in full, else by the last part.
    put(rendered(doc.Document("", "", tuple(map(_section, matches)))))
    return 0


def everything() -> list[Rows]:
    """Return what can be explained; the name is the first label of the first row."""
    return [*_causes(), *_options(), *_keys()]


def _causes() -> Iterator[Rows]:
    from diagnostics.causes import registry
    from diagnostics.causes.registry import family, traits
    from diagnostics.report.overview import word

    families: dict[str, list[str]] = {}
    for cause in registry.built_in():
        families.setdefault(family(cause.id), []).append(f"{cause.id}: {cause.title}")
        explained = ", ".join(dict.fromkeys(o for entry in cause.explained_by for o in entry.causes if o != cause.id))
        yield [
            (cause.id, cause.title),
            ("outcome", word(cause.outcome, cause.id)),
            ("decided from", cause.decided_from),
            ("ruled out by", cause.ruled_out_by),
            ("how to fix it", cause.remedy),
            ("explained by", explained),
            ("source", cause.source),
        ]
    for name, causes in families.items():
        yield [(name, f"{counted(len(causes), 'cause')} of {traits(name).title}"), *(("cause", row) for row in causes)]


def _options() -> Iterator[Rows]:
    from dtk.sharding.registry import CONFIG_TYPES

    for group, options in groups([conf_folder()]).items():
        listed = [("option", f"{group}={option}: {description(path)}") for option, path in options.items()]
        yield [(group, f"{counted(len(options), 'option')} of the configuration group"), *listed]
        for option, path in options.items():
            rows = [(f"{group}={option}", description(path))]
            if group == "strategy" and option in CONFIG_TYPES:
                row = CONFIG_TYPES[option]
                rows += [
                    ("kept per rank", "parameters {}, gradients {}, optimizer {}".format(*row.kept)),
                    ("sent per step", row.sent),
                    ("collectives", row.collectives),
                    ("use it when", row.use_when),
                    ("symbols", "`dtk strategies` explains them; docs/strategies.md has pictures"),
                ]
            yield rows


def _keys() -> Iterator[Rows]:
    from dtk.config.keys import keys

    kinds = grouped(((key.name, key.about, key.type, key.default), key.kind) for key in keys())
    sections = grouped(
        (name.partition(".")[0], f"{name}: {about}" if about else name) for name, about, *_ in kinds if "." in name
    )
    for section, listed in sections.items():
        unique = dict.fromkeys(listed)
        yield [(section, f"{counted(len(unique), 'key')} of this section"), *(("key", row) for row in unique)]
    for (name, about, typed, default), only in kinds.items():
        yield [(name, about), ("type", typed), ("default", default), ("only with", ", ".join(filter(None, only)))]


def _section(rows: Rows) -> doc.Section:
    (name, about), *others = rows
    details = tuple((f"  {label}", text) for label, text in others if text)
    heading = doc.Paragraph(f"{name}: {about}" if about else name)
    return doc.Section("", (heading, doc.Table(("", ""), details, names=2)))
