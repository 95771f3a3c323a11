"""The table that the field knows: one model, strategies down, batch sizes across, time and out of memory marked."""

from collections import Counter
from collections.abc import Sequence

from dtk.compare.model import Figure, Place, Variant

_BATCH = ("batch=", "micro=", "tokens=")


def places(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[Place]:
    """One place per variant, in its row and column; nothing unless there are several of both."""
    columns = _columns(variants)
    found = [_place(variant, column, figures) for variant, column in zip(variants, columns, strict=True)]
    rows = Counter(one.row for one in found)
    crossed = max(rows.values(), default=0) > 1 and max(Counter(columns).values(), default=0) > 1
    return found if crossed and len(rows) > 1 else []


def _columns(variants: Sequence[Variant]) -> list[str]:
    batches = [variant.any.batch for variant in variants]
    micros = [variant.any.get("train.micro_batch_size") for variant in variants]
    samples, tokens = {batch[0] for batch in batches}, {batch[1] for batch in batches}
    # Left to itself the micro-batch follows the batch: it is a column of its own only if it was varied.
    alone = len({(batch, micro) for batch, micro in zip(batches, micros, strict=True)}) > len(set(batches))
    texts = []
    for (sample, token), micro in zip(batches, micros, strict=True):
        parts = [f"batch {sample}"] if len(samples) > 1 or not alone else []
        parts += [f"{token} tokens"] if len(tokens) > 1 else []
        parts += [f"micro {micro}"] if alone else []
        texts.append(", ".join(parts))
    return texts


def _place(variant: Variant, column: str, figures: Sequence[Figure]) -> Place:
    values = {
        figure.key: cell.estimate.median
        for figure in figures
        for cell in figure.cells
        if cell.variant == variant.label and cell.estimate is not None
    }
    return Place(
        row=" ".join(word for word in variant.label.split(" ") if not word.startswith(_BATCH)),
        column=column,
        variant=variant.label,
        step_time_s=values.get("step_time_s"),
        tokens_per_s=values.get("tokens_per_s"),
        memory_bytes=values.get("peak_memory_bytes"),
        outcome=variant.outcome,
    )
