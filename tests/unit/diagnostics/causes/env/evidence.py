"""Evidence of a job, made in memory."""

from pathlib import Path

from diagnostics.causes.registry import Registry, built_in
from diagnostics.diagnose import decide as decide_all
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, RunEvidence

CAUSES = tuple(cause for cause in built_in() if cause.id.startswith("env."))


def decide(evidence):
    """The finding of each cause that lies in the environment."""
    findings, _ = decide_all(Registry(CAUSES), evidence, lambda text: None)
    assert not evidence.problems
    return {finding.cause: finding for finding in findings}


def fact(kind, text, rank=None, **fields):
    return LogFact(kind, rank, "node.log", 7, text, fields)


def job(environment=None, facts=(), errors=(), run=None):
    return Evidence(
        root=Path("job"),
        limits=Limits(),
        run=run,
        facts=list(facts),
        errors=list(errors),
        environment=environment or {},
    )


def dtk_run(environment=None, nodes=1, variables=None, hardware=None, backend="nccl", nproc=2):
    return RunEvidence(
        root=Path("job"),
        status=None,
        config={"nccl": {"variables": variables or {}}, "launcher": {"backend": backend}},
        manifest={
            "environment": environment or {},
            "hardware": hardware or {},
            "topology": {"world_size": nodes * nproc, "nproc": nproc, "nodes": nodes},
        },
        summary={},
        plan={},
        heartbeats={},
        events={},
    )
