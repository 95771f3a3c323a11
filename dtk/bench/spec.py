"""What the ranks of one launch are asked for and what they answer: the lines between the parent and its ranks."""

import json
from dataclasses import asdict, dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One launch."""

    operations: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    """Ascending, as asked for; what is sent is `Operation.fitted`."""
    dtype: str
    device: str
    backend: str
    passes: int
    """Times that everything is measured, after the one that warms up and verifies."""
    warm_up: int
    """Calls before a size is timed."""
    calls: int
    """Calls back to back that make one figure, at most."""
    seconds: float
    """Budget of measuring; sizes that do not fit into it are left out."""
    timeout_s: float
    """Longest wait in a collective."""
    verify: bool

    def dumps(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))


def loads(text: str) -> Spec:
    """Read a launch that `Spec.dumps` wrote."""
    return msgspec.json.decode(text, type=Spec)


def key_of(operation: str, size_bytes: int) -> str:
    """Name of one cell of the table in the lines that ranks write."""
    return f"{operation} {size_bytes}"
