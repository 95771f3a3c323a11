"""HTML elements built in Python with escaping by default: only what this module builds is markup."""

from html import escape

from diagnostics.contract.formatting import clean


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


Child = str | None
_VOID = frozenset({"meta", "input", "br", "hr"})


def el(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Return an HTML element.

    `children`: `Markup` unchanged, other text escaped with its control characters made visible, None left out.
    `attributes`: `class_` for `class`, `_` for `-`; False and None are left out, True has no value.
    """
    attribute_text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{attribute_text}>")
    return Markup(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Return the children concatenated, escaped like the children of an element."""
    return Markup("".join(c if isinstance(c, Markup) else _escaped(c) for c in children if c is not None))


def _escaped(value: object) -> str:
    return escape(clean(value), quote=True)
