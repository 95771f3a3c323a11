"""Declares a cause: its id, texts, example and relations are in the YAML file next to its module."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from diagnostics.contract.causes import Cause, Example, ExplainedBy, F, Suspected
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, FormattedFacts, Remedy, Text
from diagnostics.contract.formatting import Phrase, filled

Rows = str | Sequence[str]  # Names of rows of a cause's texts.


def declared(file: str, facts: Callable[[Any], F], decide: Callable[[F], Finding | Iterable[Finding]]) -> Cause[F]:
    """Return the cause of a module. Its id, `family.name`, is derived from the path and set on every finding.

    The YAML file next to the module holds the other fields of `Cause` under `cause`, and `suspected` below it.
    `explained_by` may name groups (`Cause.groups`); the text of `example` may be under `example` at the end.
    """

    def findings(built: F) -> list[Finding]:
        decided = decide(built)
        return [replace(each, cause=id) for each in ([decided] if isinstance(decided, Finding) else decided)]

    id = f"{Path(file).parent.name}.{Path(file).stem}"
    table = table_beside(file)
    row, example = dict(table["cause"]), None
    rules = convert(row.pop("explained_by", ()), tuple[ExplainedBy, ...])
    if shown := row.pop("example", None):
        text = shown.get("text") or table["example"]
        ranks, counter = tuple(shown.get("ranks", ())), table.get("counterexample", "")
        example = Example(shown["kind"], text, ranks, shown.get("outcome"), counter)
    suspected = convert(table.get("suspected"), Suspected | None)
    row |= {"suspected": suspected, "example": example, "explained_by": rules}
    return Cause(id=id, facts=facts, decide=findings, **row)


class Texts:
    """The rows under `texts` in the YAML file of a cause. They are filled in when the report is written.

    A row holds `summary`, `measured`, `missing` and `remedies`, all optional, or is a string: a summary or a phrase.
    It may refer to the finding's `{ranks}` and `{victims}`, and to the `{finding}` itself, besides the figures passed
    (`contract.formatting.filled`). If several rows are selected, their summaries and remedies are concatenated. The
    `override` of a remedy replaces its change if the figure `is_dtk` is true.
    """

    def __init__(self, file: str) -> None:
        self._rows: dict[str, Any] = table_beside(file)["texts"]

    def __call__(
        self, finding: Finding, /, said: Rows = "default", fixes: Sequence[Remedy] = (), **figures: object
    ) -> Text:
        """Return the text of a finding, made from these rows; `fixes` precede their remedies."""
        figures = {"finding": finding, "ranks": finding.ranks, "victims": finding.victims} | figures
        named = [self._rows[name] for name in ([said] if isinstance(said, str) else said)]
        rows: list[dict[str, Any]] = [{"summary": row} if isinstance(row, str) else row for row in named]
        lines = {name: next((row[name] for row in rows if name in row), "") for name in ("measured", "missing")}
        lines["summary"] = " ".join(row["summary"] for row in rows if "summary" in row)
        if finding.status == "ruled_out":
            lines["measured"] = lines["measured"] or lines["summary"]

        def written(row: Mapping[str, str]) -> dict[str, Any]:
            return {name: filled(line, figures) for name, line in row.items()}

        remedies = [written(fix) for row in rows for fix in row.get("remedies", ())]
        for fix in remedies:
            if (override := fix.pop("override", "")) and figures.get("is_dtk"):
                fix |= {"kind": "override", "change": override}
        return Text(**written(lines), remedies=(*fixes, *(Remedy(**fix) for fix in remedies)))

    def facts(self, said: Rows = "default", /, **figures: object) -> FormattedFacts:
        """Return the figures of a finding, to be formatted with these rows."""
        return FormattedFacts(self, {"said": said, **figures})

    def __contains__(self, row: str) -> bool:
        return row in self._rows

    def phrase(self, row: str, /, **figures: object) -> Phrase:
        """Return part of a sentence, or the description of a piece of evidence; `row.key` selects one text of a row."""
        name, _, key = row.partition(".")
        return Phrase(row, self._rows[name][key] if key else self._rows[name], figures)

    def remedy(self, row: str, /, **figures: object) -> Remedy:
        """Return the first remedy of a row."""
        fix: dict[str, Any] = self._rows[row]["remedies"][0]
        written: dict[str, Any] = {name: filled(text, figures) for name, text in fix.items()}
        return Remedy(**written)

    def ruled_out(self, said: Rows = "none", /, **figures: object) -> Finding:
        """Return a finding that rules this cause out; its value is the row's `measured`, or else its `summary`."""
        return Finding(status="ruled_out", facts=self.facts(said, **figures))

    def undecided(self, said: Rows = "open", /, **figures: object) -> Finding:
        """Return an undecided finding; the row's `missing` says what would record the missing evidence."""
        return Finding(status="undecided", facts=self.facts(said, **figures), confidence=0.0)
