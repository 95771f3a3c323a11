"""The world size of a job according to all files, and whether they can be from one job."""

import re
from collections import defaultdict

from msgspec import Struct, field

from diagnostics.contract.formatting import counted, first_of
from diagnostics.evidence.job.choose import ERRORS
from diagnostics.evidence.job.registry import files_of_ranks
from diagnostics.evidence.logs.nccl_calls import KIND
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.values import MOST_RANKS, integer

ALL_RANKS = -1  # Key of `Evidence.environment` for the variables of the whole job.
_VARIABLES = re.compile(r"^(?:NCCL|TORCH|GLOO|CUDA|PYTORCH|OMP|RCCL|HIP)[A-Z0-9_]*$")


class Claims(Struct):
    """World size -> the files that state it."""

    sizes: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_rank: set[int] = field(default_factory=set)
    """Sizes in ranks' own dumps or traces, which are from one time, whereas a log may cover restarts."""

    def add(self, size: int, file: str) -> None:
        """Add the world size from a file."""
        if 0 < size <= MOST_RANKS:
            self.sizes[size].append(file)

    def add_of_rank(self, size: int, file: str) -> None:
        """Add the world size from a rank's own dump or trace."""
        self.add(size, file)
        self.by_rank.add(size)


def settle(evidence: Evidence, claims: Claims) -> None:
    """Set `world_size`. If files contradict each other, add a problem and leave it unknown.

    Raises:
        DiagnosticsError: dumps or traces are from jobs of different sizes.
    """
    weakest = 0
    for fact in evidence.facts:
        nranks = fact.fields.get("nranks")
        if fact.kind in ("world_size", "start") and isinstance(nranks, int):
            claims.add(nranks, fact.file)
        elif fact.kind in ("nccl_init", KIND) and isinstance(nranks, int):
            weakest = max(weakest, nranks)  # a communicator may belong to a sub-group
    topology = evidence.run.manifest.get("topology") if evidence.run is not None else None
    stated = integer(topology.get("world_size"), 1, MOST_RANKS + 1) if isinstance(topology, dict) else None
    if stated is not None:
        claims.add(stated, "manifest.json")
    if len(claims.sizes) > 1:
        by_size = sorted(claims.sizes.items())
        parts = [f"{counted(size, 'rank')} ({first_of(sorted(files), 1)})" for size, files in by_size]
        if len(claims.by_rank) > 1 and evidence.run is None:
            raise ERRORS("sizes", root=evidence.root, count=len(parts), parts=parts)
        evidence.problems.append(Problem("file", ".", "jobs_mixed", figures={"sizes": parts}))
    evidence.world_size = stated or (next(iter(claims.sizes)) if len(claims.sizes) == 1 else None)
    if not claims.sizes and weakest <= MOST_RANKS:
        evidence.world_size = weakest or None
    for handle in files_of_ranks(evidence):
        if handle.rank is not None and evidence.world_size is not None and handle.rank >= evidence.world_size:
            figures = {"rank": handle.rank, "world_size": evidence.world_size}
            evidence.problems.append(Problem("file", handle.file, "rank_beyond", figures=figures))


def environment(evidence: Evidence) -> None:
    """Collect variables from the manifest and those that NCCL or the log prints."""
    if evidence.run is not None:
        recorded = evidence.run.manifest.get("environment")
        if isinstance(recorded, dict):
            values = {name: str(value) for name, value in sorted(recorded.items()) if _VARIABLES.match(str(name))}
            if values:
                evidence.environment[ALL_RANKS] = values
    for fact in evidence.facts:
        if fact.kind in ("nccl_env", "variable") and isinstance(fact.fields.get("name"), str):
            rank = ALL_RANKS if fact.rank is None else fact.rank
            evidence.environment.setdefault(rank, {})[fact.fields["name"]] = str(fact.fields.get("value", ""))
