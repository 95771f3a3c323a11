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
MASK = (1 << 64) - 1  # Hashes are sums modulo 2^64, see `dtk.data.sampler.samples_sum`.
NOT_COMPARED = frozenset({"failed", "hung", "oom", "lost"})  # States of runs whose figures are those of half a run.


class Window(Struct, frozen=True):
    """One record of metrics.jsonl: what it reports on the steps since the previous record."""

    last: int = msgspec.field(name="step")
    """Number of finished steps at its end."""
    time_s: float = 0.0
    """Time of its end, seconds since 1970."""
    attempt: int = 0
    loss: float | None = None
    """Loss of the last step; None if not finite."""
    step_time_s: float | None = None
    """None in the record of an evaluation."""
    tokens: int | None = None
    """Tokens since step 0."""
    mfu: float | None = None
    memory_bytes: float | None = msgspec.field(name="peak_memory_bytes", default=None)
    sent_bytes: float | None = msgspec.field(name="communicated_bytes_per_step", default=None)
    samples_hash: str | None = None
    samples: int | None = None
    """Sum modulo 2^64 over the samples of its steps; None if not recorded."""
    first: int = 0
    """Number of finished steps at its start."""
    began_step: int = 0
    """Number of finished steps when the attempt started."""


class Disturbance(Struct, frozen=True):
    """An external condition that distorts a run's figures."""

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
    """Full-buffer bytes of all of them."""
    sent_bytes: int
    """Bytes that one rank sends."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """The contents of one run folder."""

    path: Path
    state: str
    """State in status.json, or `lost` if it is `running` but the process has exited."""
    reason: str
    """Why it ended, according to the launcher."""
    started: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    parity: Mapping[str, Any]
    """parity.json; empty if not recorded."""
    figures: Mapping[str, Any]
    """Figures of summary.json; empty before the end of a run."""
    traffic: tuple[Traffic, ...]
    planned: bool = True
    """Whether plan.json lists the traffic; if not, an empty `traffic` means unknown."""
    windows: tuple[Window, ...]
    """Windows in step order; for a step of several attempts only the latest."""
    warmup_steps: int
    """Number of the first steps of every attempt that are not measured."""
    world_size: int
    breakdown: Breakdown | None = None
    causes: tuple[str, ...] = ()
    """Causes that the diagnosis of its traces found, in words."""
    energy_j: float | None = None
    """Joules per step of all devices; None if no device reports them."""
    clocks_mhz: float | None = None
    """Median SM clock of its devices over the measured steps."""
    disturbances: tuple[Disturbance, ...] = ()
    """What the telemetry shows that distorts the figures, such as throttling."""
    damage: tuple[str, ...] = ()
    """Unreadable files or lines, which are not used."""

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
    """Runs that finished and have steps after the warm-up, oldest first."""

    @property
    def any(self) -> RunRecord:
        """A run that represents what all of them have in common."""
        return (self.compared or self.runs)[0]

    @property
    def outcome(self) -> str:
        """How the runs that are not compared ended: `oom`, `failed`, ...; empty if all are compared."""
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
    """What differs, or what is equal; why it is unknown."""


class Cell(Struct, frozen=True):
    """One figure of one variant."""

    variant: str
    batch: str
    """Samples and tokens of the batch of the runs that it is compared with."""
    estimate: Estimate | None
    """Estimate over the repeats; None if the figure was not recorded."""
    ratio: Estimate | None
    """Ratio to the first variant of the same batch; None for that one, and for runs that are not comparable."""
    spread: tuple[float, float] | None = None
    """Interquartile range of the steps, if there is only one run."""


class Figure(Struct, frozen=True):
    """One quantity of all variants."""

    key: str
    title: str
    short: str
    """The title for narrow columns."""
    unit: str
    """Unit: tokens/s, s, bytes, fraction, J."""
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
    """strong: constant global batch; weak: it grows with the ranks."""
    world_size: int
    tokens_per_s: float
    efficiency: float
    """Tokens/s per rank relative to the fewest ranks, as a fraction of 1."""


class GridCell(Struct, frozen=True):
    """One cell of the table strategies x batch sizes."""

    row: str
    column: str
    variant: str
    step_time_s: float | None
    tokens_per_s: float | None
    memory_bytes: float | None
    outcome: str
    """Why there are no figures: `oom`, `failed`, ..."""


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
    """Notes that qualify the figures."""

    @property
    def fair(self) -> bool:
        """Whether no condition is violated."""
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
        """Whether at least two runs have figures, and all are known to have done the same work."""
        return self.fair and not self.doubt and (len(self.compared) > 1 or self.repeats)

    @property
    def doubt(self) -> str:
        """Why it is unknown whether otherwise equal runs did the same work; empty if they did."""
        open_checks = (check for check in self.checks if check.key == "weights" and check.status == "unknown")
        return next((f"{check.title}: {check.detail}" for check in open_checks), "")
