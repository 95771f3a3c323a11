"""Runs of one variant on several numbers of ranks: how much of the ranks' speed is left. Pure arithmetic."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from dtk.compare.group import flat
from dtk.compare.model import Figure, Scaled, Variant, medians

Kind = Literal["strong", "weak"]
_FOLLOWS = ("train.global_batch_size", "train.micro_batch_size", "strategy.dp_shard", "strategy.dp_replicate")
"""What may change with the number of ranks in one series."""


def scaling(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[Scaled]:
    """Efficiency of every series with at least two numbers of ranks, in order of ranks."""
    speeds = medians(figures, "tokens_per_s")
    points: list[Scaled] = []
    kinds: tuple[tuple[Kind, Callable[[Variant], Any]], ...] = (
        ("strong", lambda variant: variant.any.batch[0]),
        ("weak", _per_rank),
    )
    for kind, batch in kinds:
        series: dict[tuple[Any, ...], list[Variant]] = {}
        for variant in variants:
            if variant.label in speeds:
                series.setdefault((_without_batch(variant), batch(variant)), []).append(variant)
        for members in series.values():
            if len({member.any.world_size for member in members}) == len(members) > 1:
                members.sort(key=lambda member: member.any.world_size)
                words = [member.label.split(" ") for member in members]
                name = " ".join(word for word in words[0] if all(word in other for other in words))
                per_rank = [speeds[member.label] / member.any.world_size for member in members]
                for member, speed in zip(members, per_rank, strict=True):
                    size, tokens_per_s = member.any.world_size, speeds[member.label]
                    points.append(Scaled(name, kind, size, tokens_per_s, speed / per_rank[0]))
    return points


def grows_with_ranks(variants: Sequence[Variant]) -> bool:
    """Whether the variants are one series whose global batch grows as the ranks do: weak scaling."""
    sizes, batches = {v.any.world_size for v in variants}, {v.any.batch[0] for v in variants}
    series = {(_without_batch(variant), _per_rank(variant)) for variant in variants}
    return len(series) == 1 and len(sizes) == len(batches) == len(variants) > 1


def _without_batch(variant: Variant) -> tuple[Any, ...]:
    values = flat(variant.any.config)
    return tuple(sorted((key, repr(value)) for key, value in values.items() if key not in _FOLLOWS))


def _per_rank(variant: Variant) -> float:
    samples = variant.any.batch[0]
    return samples / variant.any.world_size if isinstance(samples, int | float) else 0.0
