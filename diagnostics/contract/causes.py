"""The type of a cause: one file in `diagnostics/causes/<family>/` defines one, with everything about it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from diagnostics.contract.findings import Finding, Outcome

Relation = Literal["ranks", "victims", "group", "tie", "any"]
"""When a cause explains a finding of another: the other has no culprit that this one does not have (`ranks`), its
culprits are victims of this one (`victims`), it concerns a group with a culprit of this one (`group`), it is a tie of
ranks of which this one, no less sure, names some (`tie`, also between findings of one cause), always (`any`)."""

Sign = Literal["failed", "raised", "refused", "unreduced", "fitted", "ran_out", "alone"]
"""What the evidence shows of the job's end beside a cause: the launcher's status is `failed`; a rank `raised` an
exception; the store was `refused` its port; DDP raised because gradients were `unreduced`; the job ended well although
its calls `fitted` by chance; memory `ran_out`; a launcher tells of an end and nothing of ranks that wait: `alone`."""

F = TypeVar("F")
GateKind = Literal["and", "or"]


class Branch(Struct, frozen=True):
    """A gate of the built-in fault trees."""

    id: str
    title: str
    above: str = ""
    """Id of the gate above it; empty = a top event."""
    gate: GateKind = "or"
    """`and`: every child is needed; `or`: one is enough."""


class ExplainedBy(Struct, frozen=True):
    """Causes of which this one is a consequence, so that it is not a root cause beside them."""

    causes: tuple[str, ...]
    """Ids or shell patterns (`overlap.*`)."""
    when: tuple[Relation, ...]
    """One of them must hold."""


ExampleKind = Literal["fault", "log", "variables", "calls", "timeline", "files"]
"""What the text of an example is: the name of a fault in `conf/fault/`, which a run of dtk plants; lines of the job's
log; environment variables of a job of two nodes with two GPUs each, NVLink and InfiniBand; the collectives of each
rank as its flight recorder has them; one step of a rank as the profiler shows it; files, each below a line
`--- path`."""


class Example(Struct, frozen=True):
    """The smallest evidence of a job with the cause: docs/causes.md prints it, and `test_registry.py` diagnoses it."""

    kind: ExampleKind
    text: str
    ranks: tuple[int, ...] = ()
    """Culprits that the diagnosis must name; of a fault the tests of all faults know them."""
    outcome: Outcome | None = None
    """Of the diagnosis; None = the cause's own. A risk becomes what it led to: memory that ran out is `oom`."""


class Cause(Struct, Generic[F], frozen=True, kw_only=True):
    """One cause. Its file defines the facts that its findings carry, `decide`, and ends in `CAUSE = declared(...)`."""

    id: str
    """`family.name`, as the file's path below `diagnostics/causes` has it; never renamed."""
    title: str
    """The cause in words, as it stands behind `HUNG:` in the first line of the report."""
    outcome: Outcome
    """What happened to the run when this is the root cause."""
    branch: str
    """Id of the gate above it in the fault tree (`diagnostics/causes/branches.yaml`)."""
    facts: Callable[[Any], F]
    """Builds what it is decided from, of an `evidence.model.Evidence`. Causes that name the same function share one
    result, as it runs once a diagnosis.
    A result with a method `measures()` adds the returned JSON values to `report.measures`."""
    decide: Callable[[F], Sequence[Finding]]
    """At least one finding: confirmed, ruled out, or undecided with what is missing. It may raise on evidence that
    nobody expected; the cause is then undecided, and the report says so."""
    decided_from: str
    """The evidence it takes, for docs/causes.md."""
    remedy: str
    """The usual remedy, for docs/causes.md."""
    explained_by: tuple[ExplainedBy, ...] = ()
    example: Example | None = None
    outcome_when: Mapping[Sign, Outcome] = {}
    """What it did to the job instead where this is the root cause and a sign is there, the first that is."""
    names_outcome: bool = False
    """Whether its confirmed finding tells the outcome even where it is no root cause: how the run ended, not why."""
    noted: bool = False
    """Whether its undecided findings are notes of a report without a root cause."""
    tells_end: bool = False
    """Whether its undecided findings with evidence say how the job ended, and stand in the place of a cause."""
    source: str = ""
    """The paper, document or measurement that the decision rests on."""


AnyCause = Cause[Any]
