"""Runs of one variant on several numbers of ranks: how much of the ranks' speed is left. Pure arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dtk.compare.group import flat
from dtk.compare.model import Figure, Scaled, Variant

Kind = Literal["strong", "weak"]
_FOLLOWS = ("train.global_batch_size", "train.micro_batch_size", "strategy.dp_shard", "strategy.dp_replicate")
"""What may change with the number of ranks in one series."""


def scaling(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[Scaled]:
    """Efficiency of every series with at least two numbers of ranks, in order of ranks."""
    speeds = {
        cell.variant: cell.estimate.median
        for figure in figures
        if figure.key == "tokens_per_s"
        for cell in figure.cells
        if cell.estimate is not None
    }
    found: list[Scaled] = []
    for kind, batch in _KINDS:
        series: dict[tuple[Any, ...], list[Variant]] = {}
        for variant in variants:
            if variant.label in speeds:
                series.setdefault((_without_batch(variant), batch(variant)), []).append(variant)
        for members in series.values():
            if len({one.any.world_size for one in members}) == len(members) > 1:
                found += _points(kind, sorted(members, key=lambda one: one.any.world_size), speeds)
    return found


def grows_with_ranks(variants: Sequence[Variant]) -> bool:
    """Whether the variants are one series whose global batch grows as the ranks do: weak scaling."""
    keys = {_without_batch(variant) for variant in variants}
    sizes = {variant.any.world_size for variant in variants}
    batches = {variant.any.batch[0] for variant in variants}
    return (
        len(keys) == 1
        and len(sizes) == len(batches) == len(variants) > 1
        and len({_per_rank(variant) for variant in variants}) == 1
    )


def _points(kind: Kind, members: Sequence[Variant], speeds: Mapping[str, float]) -> list[Scaled]:
    first = members[0]
    per_rank = speeds[first.label] / first.any.world_size
    words = [one.label.split(" ") for one in members]
    name = " ".join(word for word in words[0] if all(word in other for other in words))
    return [
        Scaled(name, kind, size, speeds[one.label], speeds[one.label] / size / per_rank)
        for one in members
        if (size := one.any.world_size)
    ]


def _without_batch(variant: Variant) -> tuple[Any, ...]:
    values = flat(variant.any.config)
    return tuple(sorted((key, repr(value)) for key, value in values.items() if key not in _FOLLOWS))


def _per_rank(variant: Variant) -> float:
    samples = variant.any.batch[0]
    return samples / variant.any.world_size if isinstance(samples, int | float) else 0.0


_KINDS: tuple[tuple[Kind, Callable[[Variant], Any]], ...] = (
    ("strong", lambda variant: variant.any.batch[0]),
    ("weak", _per_rank),
)
