"""Texts of the linter's findings, and the cause that each supports: the rows under `lints` of the causes' YAML files.

The key of a row is a rule of the linter (`analysis/environment`). A row has the message, and the fix if the typed
change of the lint does not give it ("unset NAME", "NAME=value"). `unread`: nothing reads the variable, so it has no
effect. {text} is the value of the variable, {choice} what the catalogue allows; a list is spelled out.
"""

from pathlib import Path

from msgspec import Struct

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import Variable, catalogue, version_text
from diagnostics.analysis.environment.situation import Lint, Value
from diagnostics.contract.files import read_table
from diagnostics.contract.formatting import first_of, ranks_spoken

_ROWS: dict[str, dict[str, str]] = {
    rule: {"cause": f"{path.parent.name}.{path.stem}", **row}
    for path in sorted(Path(__file__).parent.glob("*/[!_]*.yaml"))
    for rule, row in read_table(path).get("lints", {}).items()
}
_SHOWN = 6  # Maximum number of names that a message lists, so that it fits on a line. A convention.


class LintText(Struct, frozen=True):
    """The text of a lint."""

    cause: str
    """Cause id, as in `dtk diagnose`."""
    message: str
    """The problem in one sentence."""
    fix: str
    """The setting to use instead, or the decision to make."""
    fix_in_message: bool
    """Whether the message already includes the fix."""
    unread: bool
    """Whether nothing reads the variable."""


def lint_text(lint: Lint) -> LintText:
    """Return the text of a lint; KeyError if its rule is not in the table."""
    row, change = _ROWS[lint.rule], lint.change
    texts: dict[str, object] = {"variable": lint.variable, "choice": _choice(catalogue().find(lint.variable))}
    texts |= {"levels": " ".join(values.LEVELS), "functions": ", ".join(sorted(values.FUNCTIONS))}
    for name, value in lint.values:
        texts[name] = _shown(value)
        if isinstance(value, tuple):
            several = len(value) > 1
            texts |= {"are": "are" if several else "is", "have": "have" if several else "has"}
            texts["them"] = "them" if several else "it"
    fix = row.get("fix", "")
    if change is not None and not fix:
        fix = f"{change.name}={change.value}" if change.name else f"unset {change.unset}"
    message = row["message"].format_map(texts)
    fix = fix.format_map(texts) if "fix" in row else fix
    return LintText(row["cause"], message, fix, "fix_in_message" in row, "unread" in row)


def _shown(value: Value) -> str | int:
    """Format a list: names, the parts of a version, or values with the ranks that have them."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(part, int) for part in value):
        return version_text(tuple(part for part in value if isinstance(part, int)))
    pairs = [part for part in value if isinstance(part, tuple)]
    if pairs:
        return "; ".join(f"{text!r} on {ranks_spoken(ranks)}" for text, ranks in pairs)
    names = [name if name == name.strip() else repr(name) for name in value if isinstance(name, str)]
    return first_of(names, _SHOWN)


def _choice(variable: Variable | None) -> str:
    if variable is None or (not variable.values and variable.low is None):
        return ""
    if variable.values:
        return ", ".join(str(value) for value in variable.values)
    return f"{variable.low} to {variable.high}" if variable.high is not None else f"{variable.low} or more"
