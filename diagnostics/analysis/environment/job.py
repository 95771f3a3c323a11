"""The environment of a job: variables, versions and facts of the machine as recorded, and the linter's findings."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct, field

from diagnostics.analysis.environment.catalogue import Version, catalogue, leading_version
from diagnostics.analysis.environment.lint import lint
from diagnostics.analysis.environment.situation import Lint, lint_of
from diagnostics.analysis.environment.values import level, number
from diagnostics.analysis.step_times import Silence, silence
from diagnostics.analysis.vote import OF_JOB, count_votes
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.job.assign_ranks import ALL_RANKS
from diagnostics.evidence.model import CLAUSE, Evidence, LogFact, RankError, shortened
from diagnostics.evidence.readers import nvidia_smi

CONFIGURATION = "config.yaml"
_TEMPLATE = re.compile(r"\{[a-z_]+\??\}")
_INTERFACE = re.compile(r"\[\d+\]([\w.@-]+):")
_SHOWN = 3  # Maximum number of different values of one variable to show.
_PER_RANK = patterns_beside(__file__)["per_rank"]


class Source(NamedTuple):
    """The place at which a variable was recorded."""

    file: str
    line: int | None


class Recorded(Struct, frozen=True):
    """The environment as the evidence shows it."""

    variables: dict[int, dict[str, str]]
    """Rank (or ALL_RANKS) -> its variables, including those of ALL_RANKS."""
    sources: dict[tuple[int, str], Source]
    nccl_version: Version | None
    nnodes: int | None
    hardware: dict[str, Any]
    backend: str | None
    """`gloo` or `nccl`; None = unknown."""
    complete: bool
    """Whether an environment was recorded, and not only the variables that a log echoes."""

    def source(self, name: str, ranks: tuple[int, ...]) -> Source:
        """Return where a variable of these ranks (empty = all) was recorded."""
        keys = ((rank, name) for rank in (*ranks[:1], ALL_RANKS))
        return next((self.sources[key] for key in keys if key in self.sources), Source("environment", None))

    def value(self, name: str, ranks: tuple[int, ...]) -> str:
        """Return the value of a variable on the first of these ranks, shortened; empty if unset."""
        values = (self.variables.get(rank, {}).get(name, "") for rank in (*ranks[:1], ALL_RANKS))
        return next((shortened(text, CLAUSE) for text in values if text), "")

    @property
    def count(self) -> int:
        """Number of distinct variables that the linter checks."""
        names = {name for variables in self.variables.values() for name in variables}
        return sum(name.startswith(("NCCL_", "TORCH_", "GLOO_", "PYTORCH_")) for name in names)


def recorded(evidence: Evidence) -> Recorded:
    """Merge the environment from the manifest, the configuration and the logs."""
    echoes = {
        (ALL_RANKS if fact.rank is None else fact.rank, str(fact.fields.get("name"))): Source(fact.file, fact.line)
        for fact in evidence.facts
        if fact.kind == "nccl_env"
    }
    sources: dict[tuple[int, str], Source] = {}
    common = _variables_of_run(evidence, sources)
    whole = evidence.run is not None and isinstance(evidence.run.manifest.get("environment"), dict)
    own: dict[int, dict[str, str]] = {}
    for rank, variables in sorted(evidence.environment.items()):
        into = common if rank == ALL_RANKS else own.setdefault(rank, {})
        for name, text in variables.items():
            whole = whole or (rank, name) not in echoes
            if name not in common or not echoes_as(common[name], text):
                into[name] = text
                sources[rank, name] = echoes.get((rank, name), Source("environment", None))
    stated = {str(fact.fields.get("version")) for fact in evidence.facts if fact.kind == "nccl_version"}
    versions = {leading_version(text) for text in stated} - {()}
    topology = evidence.run.manifest.get("topology") if evidence.run else None
    nodes = topology.get("nodes") if isinstance(topology, dict) else None
    return Recorded(
        variables={ALL_RANKS: common} | {rank: {**common, **mine} for rank, mine in own.items()},
        sources=sources,
        nccl_version=versions.pop() if len(versions) == 1 else None,
        nnodes=nodes if isinstance(nodes, int) and not isinstance(nodes, bool) else None,
        hardware=_hardware(evidence),
        backend=_backend(evidence),
        complete=whole,
    )


def _variables_of_run(evidence: Evidence, sources: dict[tuple[int, str], Source]) -> dict[str, str]:
    """Return the variables of a dtk run: `nccl.variables`, overridden by the user's own environment."""
    if evidence.run is None:
        return {}
    variables: dict[str, str] = {}
    environment = evidence.run.manifest.get("environment")
    for file, record in ((CONFIGURATION, evidence.run.get("nccl.variables")), ("manifest.json", environment)):
        if isinstance(record, dict):
            texts = {str(name): str(value) for name, value in record.items()}
            if file == CONFIGURATION:  # The value of `{interface}` is in the manifest.
                texts = {name: text for name, text in texts.items() if not _TEMPLATE.search(text)}
            # A variable that dtk sets is in both; the fix belongs in the configuration.
            sources |= {
                (ALL_RANKS, name): Source(file, None) for name, text in texts.items() if variables.get(name) != text
            }
            variables |= texts
    return variables


def echoes_as(text: str, other: str) -> bool:
    """Whether `other` is how NCCL's log prints the value `text`: numbers and levels are printed as parsed."""
    return other == text or other == str(number(text).value) or other == level(text)


def _hardware(evidence: Evidence) -> dict[str, Any]:
    """Return the hardware facts of the manifest, with the HCAs and GPUs that logs list if it has none."""
    manifest = evidence.run.manifest if evidence.run else {}
    hardware = manifest.get("hardware")
    facts = dict(hardware) if isinstance(hardware, dict) else {}
    topology = manifest.get("topology")
    if isinstance(topology, dict):
        facts["nproc"] = topology.get("nproc")
    devices = [str(fact.fields.get("devices", "")) for fact in evidence.facts if fact.kind == "nccl_ib"]
    if "infiniband" not in facts and devices:
        facts["infiniband"] = sorted({name for text in devices for name in _INTERFACE.findall(text)})
    named = (fact.fields["name"] for fact in evidence.facts if fact.kind in ("gpu_name", nvidia_smi.KIND))
    if "gpus" not in facts and (gpus := [{"name": name} for name in named]):
        facts["gpus"] = gpus
    return facts


def _backend(evidence: Evidence) -> str | None:
    if any(fact.kind in ("nccl_init", "nccl_net", "nccl_version") for fact in evidence.facts):
        return "nccl"
    if evidence.run is None:
        return None
    backend, device = evidence.run.get("launcher.backend"), evidence.run.get("launcher.device")
    if backend in ("gloo", "nccl"):
        return str(backend)
    return "gloo" if device == "cpu" else "nccl" if device == "cuda" else None


def interfaces(text: str) -> list[str]:
    """Return the names in `[0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>`."""
    return _INTERFACE.findall(text)


class RankLint(Struct, frozen=True):
    """A lint, and the ranks that have it."""

    lint: Lint
    ranks: tuple[int, ...]
    """Ascending; empty = all."""


class JobEnvironment(Struct):
    """The facts from which the causes in the environment are decided."""

    recorded: Recorded
    lints: list[RankLint]
    log: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    has_messages: bool = False
    """Whether a library's message would be in the evidence: it has log lines, exceptions or a dtk run."""
    silence: Silence | None = None
    """The time without a step before something stopped the job."""
    lost: bool = False
    """Whether the status of a dtk run is "running" while its launcher's process no longer exists."""


def job_environment(evidence: Evidence) -> JobEnvironment:
    """Merge the records of the environment and lint every rank's variables."""
    record = recorded(evidence)
    lints = [*_linted(record), *_differences(record)]
    run = evidence.run
    return JobEnvironment(
        *(record, lints, evidence.facts, evidence.errors),
        has_messages=bool(evidence.facts or evidence.errors or run is not None),
        silence=silence(evidence),
        lost=run is not None and run.lost,
    )


def _linted(record: Recorded) -> Iterator[RankLint]:
    """Lint each distinct set of variables once, however many ranks have it."""
    by_variables = grouped((frozenset(variables.items()), rank) for rank, variables in record.variables.items())
    ranks_of: dict[Lint, set[int]] = defaultdict(set)
    for items, ranks in by_variables.items():
        if not (items or record.hardware):
            continue  # There is nothing to check, and loading the catalogue takes time.
        for flaw in lint(dict(sorted(items)), record.nccl_version, record.nnodes, record.hardware):
            ranks_of[flaw].update(ranks)
    for flaw, having in ranks_of.items():
        yield RankLint(flaw, () if ALL_RANKS in having else tuple(sorted(having)))


def _differences(record: Recorded) -> Iterator[RankLint]:
    """Yield variables that differ between ranks and must not, with the ranks of the minority, or all ranks at a tie."""
    values: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, variables in sorted(record.variables.items()):
        for name, value in variables.items():
            if rank != ALL_RANKS and not _PER_RANK.search(name) and catalogue().find(name) is not None:
                values[name][rank] = value
    for name, of_rank in sorted(values.items()):
        vote = count_votes(OF_JOB, 0, of_rank)
        if vote.minority:
            shown = tuple((of_rank[side[0]], side) for side in vote.sides[:_SHOWN])
            yield RankLint(lint_of("error", name, "ranks_disagree", values=shown), vote.minority)
