"""Kinds of log lines, by what they say of a job that stands still."""

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase

TRANSPORT = frozenset({"nccl_ib_error", "nccl_ib_async", "nccl_peer_closed", "nccl_connect", "link_down"})
_TABLE = table_beside(__file__)
KINDS = {name: frozenset(kinds) for name, kinds in _TABLE["kinds"].items()}
OPENS = TRANSPORT | KINDS["opens"]
"""Kinds of lines that say that something waits, or why it may wait."""
MOST_SPECIFIC = ("nccl_last_error", "nccl_result", "dist_backend_error")
"""Kinds of lines in which NCCL gives up, the most specific first; the last one only gives a place in torch's source."""
FAILED = frozenset(MOST_SPECIFIC)
OF_PEERS = FAILED | KINDS["noticed"] | KINDS["closed"] | {"nccl_peer_closed", "store_closed"}
"""Kinds of lines that a rank also writes when its peers were stopped."""


def says(row: str, **figures: object) -> Phrase:
    """Return a text of the table with these figures."""
    return Phrase(row, _TABLE["texts"][row], figures)
