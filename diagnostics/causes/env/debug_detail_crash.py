"""TORCH_DISTRIBUTED_DEBUG=DETAIL ended the job: on CPU, torch 2.13's DDP constructor segfaults under it."""

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.contract.findings import EvidenceItem, Finding, ruled_out, undecided, worded

_TEXTS = texts_beside(__file__)
_SHOWN = 8
"""Crashes that a finding cites."""


def decide(job: JobEnvironment) -> list[Finding]:
    """Decide it by the variable and the ranks that died by SIGSEGV."""
    cause, variables = CAUSE.id, job.recorded.variables.values()
    detail = any(rank.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" for rank in variables)
    crashed = [error for error in job.errors if error.signal == "SIGSEGV" or error.exit_code == -11]
    if not detail and not any(variables):
        return [undecided(cause, "There is no record of the environment variables.", "TORCH_DISTRIBUTED_DEBUG as set")]
    if not detail:
        return [ruled_out(cause, "TORCH_DISTRIBUTED_DEBUG is not DETAIL.", "TORCH_DISTRIBUTED_DEBUG is not DETAIL")]
    if not crashed:
        return [ruled_out(cause, "No rank died by SIGSEGV.", "no rank died by SIGSEGV")]
    frames = [frame for error in crashed for frame in error.frames]
    in_ddp = any(frame.function == "_ddp_init_helper" or "distributed.py" in frame.file for frame in frames)
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=worded(_TEXTS, count=len(crashed), where="inside DDP's constructor" if in_ddp else "with DETAIL set"),
            confidence=0.9 if in_ddp else 0.6,
            ranks=tuple(sorted({error.rank for error in crashed if error.rank is not None})),
            evidence=tuple(
                EvidenceItem("error", error.file, "SIGSEGV", error.line or None) for error in crashed[:_SHOWN]
            ),
        )
    ]


CAUSE = declared(__file__, job_environment, decide)
