"""The linter's findings in words, and the cause that each supports (`lint_texts.yaml`)."""

from msgspec import Struct

from diagnostics.analysis.environment import values
from diagnostics.analysis.environment.catalogue import Variable, catalogue, version_text
from diagnostics.analysis.environment.situation import Lint, Value
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import ranks_spoken

_ROWS: dict[str, dict[str, str]] = table_beside(__file__)
_SHOWN = 6
"""Names of a list that a message spells out: more do not fit its line. A convention."""


class LintText(Struct, frozen=True):
    """One lint in words."""

    cause: str
    """As `dtk diagnose` names it."""
    message: str
    """What is the matter, one sentence."""
    fix: str
    """What to type instead, or what there is to decide."""
    fix_in_message: bool
    """Whether the message says the fix already."""


CAUSES = frozenset(row["cause"] for row in _ROWS.values())
"""Every cause that a lint may speak for."""


def lint_text(lint: Lint) -> LintText:
    """Put a lint into words.

    Raises:
        KeyError: its rule is not in the table.
    """
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
    return LintText(row["cause"], message, fix.format_map(texts) if "fix" in row else fix, "fix_in_message" in row)


def _shown(value: Value) -> str | int:
    """Spell a list out: names, the parts of a version, or values with the ranks that have them."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(part, int) for part in value):
        return version_text(tuple(part for part in value if isinstance(part, int)))
    pairs = [part for part in value if isinstance(part, tuple)]
    if pairs:
        return "; ".join(f"{text!r} on {ranks_spoken(ranks)}" for text, ranks in pairs)
    names = [name if name == name.strip() else repr(name) for name in value if isinstance(name, str)]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _choice(variable: Variable | None) -> str:
    """Return what the catalogue allows for a variable."""
    if variable is None or (not variable.values and variable.low is None):
        return ""
    if variable.values:
        return ", ".join(str(value) for value in variable.values)
    return f"{variable.low} to {variable.high}" if variable.high is not None else f"{variable.low} or more"
