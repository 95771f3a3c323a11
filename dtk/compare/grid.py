"""The table that the field knows: one model, strategies down, batch sizes across, time and out of memory marked."""

from collections import Counter
from collections.abc import Sequence

from dtk.compare.model import Figure, GridCell, Variant, medians

_BATCH = ("batch=", "micro=", "tokens=")


def grid(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[GridCell]:
    """One cell per variant, in its row and column; nothing unless there are several of both."""
    keys = ("step_time_s", "tokens_per_s", "peak_memory_bytes")
    times_s, speeds, peaks = (medians(figures, key) for key in keys)
    batches = [(*variant.any.batch, variant.any.get("train.micro_batch_size")) for variant in variants]
    samples, tokens = {batch[0] for batch in batches}, {batch[1] for batch in batches}
    # Left to itself the micro-batch follows the batch: it is a column of its own only if it was varied.
    alone = len(set(batches)) > len({batch[:2] for batch in batches})
    cells = []
    for variant, (sample, token, micro) in zip(variants, batches, strict=True):
        parts = [f"batch {sample}"] if len(samples) > 1 or not alone else []
        parts += [f"{token} tokens"] if len(tokens) > 1 else []
        parts += [f"micro {micro}"] if alone else []
        label = variant.label
        row = " ".join(word for word in label.split(" ") if not word.startswith(_BATCH))
        figures_of = (times_s.get(label), speeds.get(label), peaks.get(label))
        cells.append(GridCell(row, ", ".join(parts), label, *figures_of, variant.outcome))
    rows, columns = Counter(cell.row for cell in cells), Counter(cell.column for cell in cells)
    crossed = len(rows) > 1 and max(rows.values()) > 1 and max(columns.values()) > 1
    return cells if crossed else []
