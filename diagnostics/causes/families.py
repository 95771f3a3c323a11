"""What the causes of one family share, from `families.yaml`: no other module knows a family's name."""

import msgspec

from diagnostics.contract.causes import Sign
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Outcome


class Family(msgspec.Struct, frozen=True):
    """Traits of a family; `families.yaml` describes each. A user's own family has none."""

    title: str
    recorded_for: frozenset[str] = frozenset()
    taken_while: frozenset[str] = frozenset()
    shows_end: bool = True
    outcome_when: dict[Sign, Outcome] = {}


FAMILIES = msgspec.convert(table_beside(__file__), dict[str, Family])


def family(cause: str) -> str:
    """Return the family of a cause: the first word of its id."""
    return cause.partition(".")[0]


def traits(cause: str) -> Family:
    """Return the traits of a cause's family."""
    return FAMILIES.get(family(cause)) or Family(family(cause))
