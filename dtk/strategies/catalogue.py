"""What each strategy shards and sends per step, in words and formulas. Torch-free, so `dtk strategies` is instant.

P = bytes of all parameters, N = data-parallel ranks, A = accumulation steps, K = bytes of optimizer
state (2 P for AdamW). Sources: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (DDP), Zhao et al. 2023 (FSDP).
"""

import io
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StrategyFacts:
    """One row of the table."""

    summary: str
    parameters: str
    """Bytes of parameters a rank keeps between steps."""
    gradients: str
    optimizer_state: str
    collectives: str
    """Per optimizer step."""
    sent: str
    """Bytes a rank sends per step with ring algorithms."""
    use_when: str


_FULL = "P"
_SHARD = "P/N"

CATALOGUE: dict[str, StrategyFacts] = {
    "single": StrategyFacts(
        "one process, one device", _FULL, _FULL, "K", "none", "0", "it fits on one device; the reference"
    ),
    "dp": StrategyFacts(
        "nn.DataParallel: threads over all CUDA devices of one process",
        _FULL,
        "P on the first device",
        "K on the first device",
        "broadcast P, gather outputs, reduce P (inside one process)",
        "about 2 P through the first device",
        "never for new work: the historical baseline",
    ),
    "ddp": StrategyFacts(
        "replicas; gradients averaged in buckets during backward",
        _FULL,
        _FULL,
        "K",
        "all_reduce of each gradient bucket",
        "2 P (N-1)/N",
        "the whole training state fits on every device",
    ),
    "zero1": StrategyFacts(
        "DDP with the optimizer state sharded by parameter",
        _FULL,
        _FULL,
        "about K/N (whole parameters, so uneven)",
        "all_reduce of each gradient bucket; N broadcasts of updated parameters",
        "2 P (N-1)/N + P (N-1)/N",
        "DDP almost fits and the optimizer state is what is too much",
    ),
    "zero2": StrategyFacts(
        "gradients and optimizer state sharded; parameters kept from forward to backward",
        "P/N (P from forward to backward)",
        _SHARD,
        "K/N",
        "A all_gathers and one reduce_scatter per unit",
        "A P (N-1)/N + P (N-1)/N",
        "the parameters fit on each device, gradients and state do not",
    ),
    "zero3": StrategyFacts(
        "parameters, gradients and optimizer state sharded; each unit gathered when it is used",
        _SHARD,
        _SHARD,
        "K/N",
        "2 A all_gathers (the root unit: A) and one reduce_scatter per unit",
        "2 A P (N-1)/N + P (N-1)/N",
        "the model does not fit on one device",
    ),
    "fsdp": StrategyFacts(
        "PyTorch's name for zero3: fully_shard per block",
        _SHARD,
        _SHARD,
        "K/N",
        "2 A all_gathers (the root unit: A) and one reduce_scatter per unit",
        "2 A P (N-1)/N + P (N-1)/N",
        "the model does not fit on one device",
    ),
    "hsdp": StrategyFacts(
        "zero3 inside groups of S = dp_shard ranks, replicas between the groups",
        "P/S",
        "P/S",
        "K/S",
        "as zero3 over dp_shard; one all_reduce of P/S per unit over dp_replicate",
        "as zero3 with N = S, and 2 P/S (R-1)/R with R = dp_replicate",
        "links inside a node are much faster than those between nodes",
    ),
}

_COLUMNS = ("strategy", "parameters", "gradients", "optimizer state", "collectives per step", "sent per rank and step")


def _rows() -> list[tuple[str, ...]]:
    return [
        (name, facts.parameters, facts.gradients, facts.optimizer_state, facts.collectives, facts.sent)
        for name, facts in CATALOGUE.items()
    ]


_WIDE = 120
"""Columns below which each strategy has lines of its own instead of a row."""
_LEGEND = (
    "P parameter bytes, K optimizer state bytes (AdamW: 2 P), N ranks, A accumulation steps. "
    "Every run adds one all_reduce of 16 bytes per step on the control group, and on logging steps "
    "one of 4 bytes; clipping adds 4 bytes where gradients are sharded."
)


def render(form: str = "terminal", columns: int = _WIDE) -> str:
    """The table of all strategies as `terminal` text of so many columns, or as `markdown`.

    Raises:
        ValueError: another form.
    """
    if form == "markdown":
        lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in _rows()]) + "\n"
    if form != "terminal":
        raise ValueError(f"unknown form {form!r}")
    return _table(columns) if columns >= _WIDE else _blocks(columns)


def _table(columns: int) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=_LEGEND)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for row in _rows():
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=columns).print(table)
    return out.getvalue()


def _blocks(columns: int) -> str:
    """What a row of the table says, a line each."""
    label = 1 + max(map(len, _COLUMNS))
    lines = []
    for name, facts in CATALOGUE.items():
        lines += _folded(f"{name}: {facts.summary}", "", columns)
        cells = (facts.parameters, facts.gradients, facts.optimizer_state, facts.collectives, facts.sent)
        for column, cell in zip((*_COLUMNS[1:], "use when"), (*cells, facts.use_when), strict=True):
            lines += _folded(cell, f"  {column:<{label}}", columns)
        lines.append("")
    return "\n".join([*lines, *_folded(_LEGEND, "", columns)]) + "\n"


def _folded(text: str, label: str, columns: int) -> list[str]:
    width = max(columns, len(label) + 20)
    return textwrap.wrap(text, width, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)
