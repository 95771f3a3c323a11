"""Traits shared by the causes of a family, from `families.yaml`: no other module refers to a family by name."""

from typing import Literal

import msgspec

from diagnostics.contract.causes import ExplainedBy, Sign
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Outcome


class Family(msgspec.Struct, frozen=True):
    """Traits of a family, described in `families.yaml`. A user's own family has the defaults."""

    title: str
    recorded_for: frozenset[str] = frozenset()
    taken_while: frozenset[str] = frozenset()
    shows_end: bool = True
    outcome_when: dict[Sign, Outcome] = {}
    verified_by: tuple[str, ...] = ()
    chart: Literal["", "calls", "bytes", "times"] = ""
    explained_by: tuple[ExplainedBy, ...] = ()


FAMILIES = msgspec.convert(table_beside(__file__), dict[str, Family])


def family(cause: str) -> str:
    """Return the family of a cause: the first word of its id."""
    return cause.partition(".")[0]


def traits(cause: str) -> Family:
    """Return the traits of a cause's family."""
    return FAMILIES.get(family(cause)) or Family(family(cause))
