"""The order of the rows of a fused projection. Logical rows stand as [queries | keys | values], each [heads,
head_width]: so they are drawn, hashed and exchanged. Stored rows stand as [heads, (query, key, value), head_width], so
that a contiguous part of them has whole heads.
"""

from torch import Tensor

from dtk.parallel.placement import Piece

PARTS = 3
"""Queries, keys and values."""


def by_head(logical: Tensor, heads: int) -> Tensor:
    """Return the rows as they are stored, from logical ones."""
    return logical.reshape(PARTS, heads, -1, *logical.shape[1:]).transpose(0, 1).flatten(0, 2)


def by_part(stored: Tensor, heads: int) -> Tensor:
    """Return logical rows from stored ones."""
    return stored.reshape(heads, PARTS, -1, *stored.shape[1:]).transpose(0, 1).flatten(0, 2)


def runs(piece: Piece, rows: int, heads: int | None) -> list[tuple[int, int, int]]:
    """(first row in the piece, first logical row, number) of rows that follow each other in both, in logical order.

    Args:
        piece: what a rank holds of the parameter.
        rows: of the whole parameter.
        heads: of a fused projection; None = rows are stored as they are.
    """
    first, count = piece.offset[0], piece.size[0]
    if heads is None:
        return [(0, first, count)]
    width = rows // (PARTS * heads)
    parts = []
    for block in range(first // width, -(-(first + count) // width) if count else 0):
        head, part = divmod(block, PARTS)
        begin, end = max(first, block * width), min(first + count, (block + 1) * width)
        parts.append((begin - first, (part * heads + head) * width + begin - block * width, end - begin))
    return sorted(parts, key=lambda run: run[1])
