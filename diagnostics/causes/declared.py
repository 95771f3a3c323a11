"""The one way to declare a cause: its id, words, example and relations lie in a YAML file beside its module."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics.contract.causes import Cause, Example, ExplainedBy, F
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, Remedy, Text
from diagnostics.contract.formatting import filled

_GROUPS: dict[str, list[str]] = table_beside(__file__)


def declared(file: str, facts: Callable[[Any], F], decide: Callable[[F], Sequence[Finding]]) -> Cause[F]:
    """Return the cause of a module. Its id is `family.name`, as the path has it.

    The YAML file beside the module holds under `cause` the other fields of `Cause`. `explained_by` may name groups of
    `declared.yaml`; the text of `example` may stand under `example` at the end of the file.

    Args:
        file: `__file__` of the module.
        facts: builds what it is decided from.
        decide: decides it.
    """
    path, table = Path(file), table_beside(file)
    row, rules, example = dict(table["cause"]), [], None
    for rule in row.pop("explained_by", ()):
        rules.append(ExplainedBy(tuple(_names(rule["causes"])), tuple(rule["when"])))
    if shown := row.pop("example", None):
        text = shown.get("text") or table["example"]
        example = Example(shown["kind"], text, tuple(shown.get("ranks", ())), shown.get("outcome"))
    id = f"{path.parent.name}.{path.stem}"
    return Cause(id=id, facts=facts, decide=decide, example=example, explained_by=tuple(rules), **row)


def texts_beside(file: str) -> Callable[..., Text]:
    """Return what fills in `texts` of the YAML file beside a cause (`contract.formatting.filled`), for `worded`.

    It takes the finding, figures by name, and `said`: the row to say, or several, whose summaries and remedies follow
    each other. Rows may name `{ranks}` and `{victims}`, those of the finding, and the `{finding}` itself.
    """
    table = table_beside(file)["texts"]

    def text(finding: Finding, /, said: str | Sequence[str] = "usual", **figures: object) -> Text:
        figures = {"finding": finding, "ranks": finding.ranks, "victims": finding.victims} | figures
        rows = [table[name] for name in ([said] if isinstance(said, str) else said)]
        lines = {name: next((row[name] for row in rows if name in row), "") for name in ("measured", "missing")}
        lines["summary"] = " ".join(row["summary"] for row in rows if "summary" in row)

        def written(row: Mapping[str, str]) -> dict[str, Any]:
            return {name: filled(line, figures) for name, line in row.items()}

        fixes = tuple(Remedy(**written(fix)) for row in rows for fix in row.get("remedies", ()))
        return Text(**written(lines), remedies=fixes)

    return text


def _names(entries: Iterable[str]) -> Iterator[str]:
    """Yield ids and patterns, with those of a group in its place."""
    for entry in entries:
        yield from _names(_GROUPS[entry]) if entry in _GROUPS else (entry,)
