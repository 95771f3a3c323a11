"""The types of a comparison: its input and its result. Runs that do not differ are repeats of one variant."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from diagnostics.contract.origins import at_key
from diagnostics.report.measures import Breakdown
from dtk.compare.statistics import Estimate

SCHEMA = "dtk.comparison/1"
NOT_COMPARED = frozenset({"failed", "hung", "oom", "lost"})  # States of runs whose figures are those of half a run.


class Window(Struct, frozen=True):
    """One record of metrics.jsonl, by its own fields: what it says of the steps since the record before."""

    last: int = msgspec.field(name="step")
    """Steps finished when it ended."""
    time_s: float = 0.0
    """Its end, seconds since 1970."""
    attempt: int = 0
    loss: float | None = None
    """Of the last step; None when it is not finite."""
    step_time_s: float | None = None
    """None in the record of an evaluation."""
    tokens: int | None = None
    """Since step 0."""
    mfu: float | None = None
    memory_bytes: float | None = msgspec.field(name="peak_memory_bytes", default=None)
    sent_bytes: float | None = msgspec.field(name="communicated_bytes_per_step", default=None)
    samples_hash: str | None = None
    samples: int | None = None
    """Sum modulo 2^64 over the samples of its steps; None when it was not recorded."""
    first: int = 0
    """Steps finished when it began."""
    began_step: int = 0
    """Steps finished when the attempt began."""


class Disturbance(Struct, frozen=True):
    """Something outside the run that distorts its figures."""

    what: str
    """The same text for every run: `other processes used the CPU`."""
    how: str
    """How much in this run: `34% on average`."""


class Traffic(Struct, frozen=True):
    """One kind of collective that a rank issues in a step, as declared at launch."""

    op: str
    group: str
    count: int
    size_bytes: int
    """Full buffers of all of them."""
    sent_bytes: int
    """On the wire, of one rank."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run folder, read."""

    path: Path
    state: str
    """Of status.json, or `lost`: it says running, but its process is gone."""
    reason: str
    """Why it ended, as the launcher wrote it."""
    started: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    parity: Mapping[str, Any]
    """parity.json; empty when it was not recorded."""
    figures: Mapping[str, Any]
    """Of summary.json; empty before the end of a run."""
    traffic: tuple[Traffic, ...]
    planned: bool = True
    """Whether plan.json lists the traffic; if not, an empty `traffic` means unknown."""
    windows: tuple[Window, ...]
    """In order of steps; of a step that several attempts made, only the latest."""
    world_size: int
    breakdown: Breakdown | None = None
    causes: tuple[str, ...] = ()
    """What the diagnosis of its traces found, in words."""
    energy_j: float | None = None
    """Joules per step of all devices; None when no device tells."""
    clocks_mhz: float | None = None
    """Median SM clock of its devices over the measured steps."""
    disturbances: tuple[Disturbance, ...] = ()
    """What the telemetry shows that distorts the figures, such as throttling."""
    damage: tuple[str, ...] = ()
    """Files, or lines of them, that cannot be read and are not used."""

    @property
    def name(self) -> str:
        """The run id."""
        return self.path.name

    def get(self, key: str, default: Any = None) -> Any:
        """Return one value of the configuration by its dotted key."""
        return at_key(self.config, key, default)

    @property
    def batch(self) -> tuple[Any, Any]:
        """(samples of the global batch, tokens of a sample): runs of another batch do other work in a step."""
        return self.get("train.global_batch_size"), self.get("data.sequence_length")


class Variant(Struct):
    """Repeats of one configuration."""

    label: str
    """What distinguishes it from the others: `fsdp`, `fsdp micro=2`."""
    runs: list[RunRecord]
    compared: list[RunRecord]
    """Those that ended well and have steps after the warm-up, the oldest first."""

    @property
    def any(self) -> RunRecord:
        """A run that stands for what all of them have in common."""
        return (self.compared or self.runs)[0]

    @property
    def outcome(self) -> str:
        """How those that are not compared ended: `oom`, `failed`, ...; empty when all are compared."""
        states = [run.state for run in self.runs if run not in self.compared]
        worst = next((state for state in ("oom", "hung", "failed", "lost") if state in states), "no steps")
        return worst if states else ""


Status = Literal["same", "differs", "unknown"]


class Check(Struct, frozen=True):
    """One condition of a fair comparison."""

    key: str
    title: str
    status: Status
    detail: str
    """What differs, or what is the same; why it is not known."""


class Cell(Struct, frozen=True):
    """One figure of one variant."""

    variant: str
    batch: str
    """Of the runs it is compared with: samples and tokens."""
    estimate: Estimate | None
    """Over the repeats; None where the figure was not recorded."""
    ratio: Estimate | None
    """To the first variant of the same batch; None for that one, and for runs that are not comparable."""
    spread: tuple[float, float] | None = None
    """Middle half of the steps, where there is one run only."""


class Figure(Struct, frozen=True):
    """One quantity of all variants."""

    key: str
    title: str
    short: str
    """The title where there is little room."""
    unit: str
    """tokens/s, s, bytes, fraction, J."""
    definition: str
    less_is_better: bool
    cells: tuple[Cell, ...]


def medians(figures: Sequence[Figure], key: str) -> dict[str, float]:
    """Return label of a variant -> its median of one figure, of those that have it."""
    cells = (cell for figure in figures if figure.key == key for cell in figure.cells)
    return {cell.variant: cell.estimate.median for cell in cells if cell.estimate is not None}


class Scaled(Struct, frozen=True):
    """One variant on one number of ranks."""

    series: str
    """The variant without its number of ranks."""
    kind: Literal["strong", "weak"]
    """strong: the global batch stays; weak: it grows with the ranks."""
    world_size: int
    tokens_per_s: float
    efficiency: float
    """Tokens/s per rank over those of the fewest ranks, a fraction of 1."""


class GridCell(Struct, frozen=True):
    """One cell of the table strategies x batch sizes."""

    row: str
    column: str
    variant: str
    step_time_s: float | None
    tokens_per_s: float | None
    memory_bytes: float | None
    outcome: str
    """`oom`, `failed`, ...: why there are no figures."""


class Doubt(str):
    """A note that casts doubt on the figures."""

    __slots__ = ()


class Comparison(Struct, frozen=True, kw_only=True):
    """Everything that the forms (terminal, JSON, Markdown, HTML) show."""

    variants: tuple[Variant, ...]
    checks: tuple[Check, ...]
    figures: tuple[Figure, ...]
    verdicts: tuple[str, ...]
    """One sentence per variant except the first of each batch; empty without parity."""
    scaling: tuple[Scaled, ...]
    grid: tuple[GridCell, ...]
    """Empty where there are not several strategies and several batches."""
    warmup_steps: int
    notes: tuple[str, ...]
    """What the reader must know about the figures."""

    @property
    def fair(self) -> bool:
        """Whether no condition is broken."""
        return not any(check.status == "differs" for check in self.checks)

    @property
    def compared(self) -> list[Variant]:
        """Variants with figures."""
        return [variant for variant in self.variants if variant.compared]

    @property
    def repeats(self) -> bool:
        """Whether all runs are of one variant and several have figures: they are measured, not ranked."""
        return len(self.variants) == 1 and len(self.variants[0].compared) > 1

    @property
    def comparable(self) -> bool:
        """Whether there are at least two runs with figures, and all are known to have done the same work."""
        return self.fair and not self.doubt and (len(self.compared) > 1 or self.repeats)

    @property
    def doubt(self) -> str:
        """Why nobody can say that runs which differ in nothing else did the same work; empty = they did."""
        open_checks = (check for check in self.checks if check.key == "weights" and check.status == "unknown")
        return next((f"{check.title}: {check.detail}" for check in open_checks), "")
