"""TORCH_DISTRIBUTED_DEBUG=DETAIL ended the job: on CPU, torch 2.13's DDP constructor segfaults under it."""

from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text
from diagnostics.evidence.model import RankError

_SHOWN = 8
"""Crashes that a finding cites."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """Ranks that died by SIGSEGV with DETAIL set."""

    count: int
    in_ddp: bool
    """A stack shows DDP's constructor."""

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        where = "inside DDP's constructor" if self.in_ddp else "with DETAIL set"
        return Text(
            summary=(
                f"{self.count} ranks died by SIGSEGV {where}: TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DDP on gloo in "
                "torch 2.13, even with a correct model."
            ),
            measured=f"{self.count} ranks by SIGSEGV",
            remedies=(Remedy("environment", "TORCH_DISTRIBUTED_DEBUG=INFO", "INFO names unused parameters too"),),
        )


@dataclass(frozen=True, slots=True)
class NoCrash:
    """Why it is not it, or what is not recorded."""

    why: Literal["not_set", "no_crash", "unknown"]

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        if self.why == "unknown":
            summary = "There is no record of the environment variables."
            return Text(summary=summary, missing="TORCH_DISTRIBUTED_DEBUG as set")
        if self.why == "not_set":
            measured = "TORCH_DISTRIBUTED_DEBUG is not DETAIL"
            return Text(summary=f"{measured}.", measured=measured)
        return Text(summary="No rank died by SIGSEGV.", measured="no rank died by SIGSEGV")


def decide(job: JobEnvironment) -> list[Finding]:
    """Decide it by the variable and the ranks that died by SIGSEGV."""
    cause, variables = CAUSE.id, job.recorded.variables.values()
    detail = any(rank.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" for rank in variables)
    crashed = [error for error in job.errors if error.signal == "SIGSEGV" or error.exit_code == -11]
    if not detail and not any(variables):
        return [Finding(cause=cause, status="undecided", facts=NoCrash("unknown"))]
    if not detail or not crashed:
        return [Finding(cause=cause, status="ruled_out", facts=NoCrash("no_crash" if detail else "not_set"))]
    in_ddp = any(map(_inside_ddp, crashed))
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=Crashes(len(crashed), in_ddp),
            confidence=0.9 if in_ddp else 0.6,
            ranks=tuple(sorted({error.rank for error in crashed if error.rank is not None})),
            evidence=tuple(
                EvidenceItem("error", error.file, "SIGSEGV", error.line or None) for error in crashed[:_SHOWN]
            ),
        )
    ]


def _inside_ddp(error: RankError) -> bool:
    return any(frame.function == "_ddp_init_helper" or "distributed.py" in frame.file for frame in error.frames)


CAUSE = Cause(
    id="env.debug_detail_crash",
    title="TORCH_DISTRIBUTED_DEBUG=DETAIL ended the job",
    outcome="crashed",
    branch="environment.settings",
    facts=job_environment,
    decide=decide,
    decided_from="environment, and a rank that died by SIGSEGV",
    remedy="TORCH_DISTRIBUTED_DEBUG=INFO",
)
