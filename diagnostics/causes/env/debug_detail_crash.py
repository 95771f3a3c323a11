"""TORCH_DISTRIBUTED_DEBUG=DETAIL crashed the job: on CPU, torch 2.13's DDP constructor segfaults with it."""

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import CERTAIN, CITED, OPEN, EvidenceItem, Finding, confirmed

_TEXTS = Texts(__file__)


def decide(job: JobEnvironment) -> Finding:
    """Decide from the variable and the ranks that died of SIGSEGV."""
    variables = job.recorded.variables.values()
    detail = any(rank.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" for rank in variables)
    crashed = [error for error in job.errors if error.signal == "SIGSEGV" or error.exit_code == -11]
    if not detail and not any(variables):
        return _TEXTS.undecided()
    if not detail:
        return _TEXTS.ruled_out("other_level")
    if not crashed:
        return _TEXTS.ruled_out("no_crash")
    frames = [frame for error in crashed for frame in error.frames]
    in_ddp = any(frame.function == "_ddp_init_helper" or "distributed.py" in frame.file for frame in frames)
    return confirmed(
        facts=_TEXTS.facts(count=len(crashed), where=_TEXTS.phrase("in_ddp" if in_ddp else "detail")),
        confidence=CERTAIN if in_ddp else OPEN,
        ranks=tuple(sorted({error.rank for error in crashed if error.rank is not None})),
        evidence=tuple(EvidenceItem("error", error.file, "SIGSEGV", error.line or None) for error in crashed[:CITED]),
    )


CAUSE = declared(__file__, job_environment, decide)
