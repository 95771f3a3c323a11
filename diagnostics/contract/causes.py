"""The type of a cause. Each file in `diagnostics/causes/<family>/` defines one cause completely."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from diagnostics.contract.findings import Finding, Outcome

Relation = Literal["ranks", "victims", "group", "tie", "basis", "recorded", "any"]
"""When a cause explains a finding of another: all culprits of that finding are culprits of this cause (`ranks`) or its
victims (`victims`), it concerns a group that contains a culprit of this cause (`group`), it is a tie that this cause,
with at least equal confidence, narrows down (`tie`, also between findings of one cause), this cause has a better basis
and accounts for all of its ranks and victims, as culprits or victims of its own (`basis`, also between findings of one
cause, and for open findings that rest on the waiting alone: it rules them out), records or places show this cause and
the finding is less than certain (`recorded`), or always (`any`)."""

Sign = Literal["failed", "raised", "refused", "unreduced", "fitted", "ran_out", "alone", "unmet"]
"""State of the job's end that changes the outcome of a cause: the launcher's status is `failed`; a rank `raised` an
exception; the store was `refused` its port; DDP raised because gradients were `unreduced`; the job succeeded although
its calls `fitted` by chance; memory `ran_out`; `alone`: the launcher reports an end, and no rank is known to wait; NCCL
gave up a connection, so ranks remained `unmet`."""

F = TypeVar("F")
GateKind = Literal["and", "or"]


class Branch(Struct, frozen=True):
    """A gate of the built-in fault trees."""

    id: str
    title: str
    above: str = ""
    """Id of the parent gate; empty for a top event."""
    gate: GateKind = "or"
    """`and`: all children are required; `or`: one is enough."""


class ExplainedBy(Struct, frozen=True):
    """Causes of which this one is a consequence; if one of them is found, this one is not a root cause."""

    causes: tuple[str, ...]
    """Ids or shell patterns (`overlap.*`)."""
    when: tuple[Relation, ...]
    """Alternative conditions; one must hold."""


ExampleKind = Literal["fault", "log", "variables", "calls", "timeline", "files"]
"""Type of an example's text: the name of a fault in `conf/fault/`, which a dtk run injects; lines of the job's log;
environment variables of a job of two nodes with two GPUs each, NVLink and InfiniBand; the collectives of each rank as
in its flight recorder; one step of a rank as in a profiler trace; files, each below a line `--- path`."""


class Example(Struct, frozen=True):
    """The smallest evidence of a job with the cause; printed in docs/causes.md and diagnosed by `test_registry.py`."""

    kind: ExampleKind
    text: str
    ranks: tuple[int, ...] = ()
    """Culprits that the diagnosis must name; for faults they are defined by the tests of all faults."""
    outcome: Outcome | None = None
    """Expected outcome of the diagnosis; None if it is the cause's. Differs if a risk led to an `oom`."""
    counter: str = ""
    """Evidence that resembles the example and must not confirm the cause; empty if the cause has tests of its own."""


Culprits = Literal["nobody", "behind", "silent", "stalled"]
"""Ranks that a suspicion names: none; those that did not make the call in which others wait; those that left nothing;
those whose side threads failed, or else those behind or silent."""
Ratio = Annotated[float, Meta(gt=0)]


class Suspected(Struct, frozen=True, forbid_unknown_fields=True):
    """How likely a cause is if none is confirmed: its odds are its share times the ratio of each clue found."""

    share: Ratio
    """Its share of such jobs."""
    decide: str
    """What confirms it or rules it out: a name under `decide` of `causes/suspicions.yaml`."""
    clues: Mapping[str, Ratio]
    """Name of a clue (`causes/suspicions.py`) -> likelihood ratio: above 1, it speaks for the cause."""
    explains: Literal["end", "memory"] = "end"
    """What it would explain: how the job ended or why it waits, or what took the memory of a device that ran out."""
    ranks: Culprits = "nobody"
    says: Mapping[str, str] = {}
    """Of memory: clue -> words, `default` without any of its clues; with none it is not suspected."""


class Cause(Struct, Generic[F], frozen=True, kw_only=True):
    """One cause. Its file defines the facts of its findings and `decide`, and ends with `CAUSE = declared(...)`."""

    id: str
    """`family.name`, equal to the file's path in `diagnostics/causes`; never renamed."""
    title: str
    """Title of the cause, printed after the outcome (`HUNG:`) in the first line of the report."""
    outcome: Outcome
    """Outcome of the run if this is the root cause."""
    branch: str
    """Id of its gate in the fault tree (`diagnostics/causes/branches.yaml`)."""
    facts: Callable[[Any], F]
    """Computes the input of `decide` from an `evidence.model.Evidence`. Causes with the same function share one result,
    as it runs once per diagnosis. A result with a method `measures()`, or `measures_of(findings)` for the findings of
    these causes, adds the returned JSON values to `report.measures`."""
    decide: Callable[[F], Sequence[Finding]]
    """Returns at least one finding: confirmed, ruled out, or undecided with what is missing. If it raises on unexpected
    evidence, the cause is undecided, and the report mentions it."""
    decided_from: str
    """The evidence that it uses, for docs/causes.md."""
    remedy: str
    """The usual remedy, for docs/causes.md."""
    ruled_out_by: str
    """The evidence that rules it out, alternatives separated by semicolons; `nothing: ...` says why there is none."""
    source: str
    """The paper, document or measurement that the decision is based on."""
    explained_by: tuple[ExplainedBy, ...] = ()
    groups: Sequence[str] = ()
    """Names, in capitals, by which the `explained_by` of others refer to this cause together with similar ones."""
    example: Example | None = None
    suspected: Suspected | None = None
    """How a report that confirms no cause weighs this one (`causes/suspicions.py`); None if it never suspects it."""
    outcome_when: Mapping[Sign, Outcome] = {}
    """Outcomes that replace `outcome` if this is the root cause and the sign is present; the first match applies."""
    names_outcome: bool = False
    """Whether its confirmed finding determines the outcome even if it is not a root cause: how the run ended."""
    of_one_rank: bool = False
    """Whether some rank ended first, so that a finding without ranks means that no line names it."""
    noted: bool = False
    """Whether its undecided findings become notes in a report without a root cause."""
    weighed: bool = False
    """Whether `suspected` weighs what its unsure finding rests on (sizes, and the calls of the peers), so that a
    report with such suspicions and calls omits the finding."""
    tells_end: bool = False
    """Whether it tells who stopped the job: printed as STOPPED; undecided with evidence, it replaces a cause."""
    verified_by: Sequence[str] | None = None
    """Figures that show whether its remedy helps, if others than those of its family; see `families.yaml`."""


AnyCause = Cause[Any]
