"""Memory detectors: why memory ran out, or will on more ranks or after more steps. Each cause in its own module."""

from dataclasses import dataclass

from diagnostics.contract.findings import Detection
from diagnostics.evidence.model import Evidence


@dataclass(frozen=True, slots=True)
class MemoryDetector:
    """Decides all memory causes from one reading of the evidence."""

    name: str = "memory"
    causes: tuple[str, ...] = (
        "memory.full_gather",
        "memory.no_reshard",
        "memory.replicated_gather",
        "memory.full_state_dict",
        "memory.model_states",
        "memory.activations",
        "memory.fragmentation",
        "memory.leak",
        "memory.non_torch",
    )

    def detect(self, evidence: Evidence) -> Detection:
        """Read the files of the first ranks and decide; what is unreadable is a line under coverage."""
        from diagnostics.analysis.memory import job as situation
        from diagnostics.analysis.memory import measures
        from diagnostics.analysis.memory import out_of_memory as oom_text
        from diagnostics.detectors.memory import copies, demand, gathers, leak, lost, reshard

        found = situation.read(evidence)
        findings = [
            gathers.full_gather(found),
            reshard.no_reshard(found),
            copies.replicated_gather(found),
            copies.full_state_dict(found),
            demand.model_states(found),
            demand.activations(found),
            lost.fragmentation(found),
            leak.leak(found),
            lost.non_torch(found),
        ]
        findings = [oom_text.placed(one, evidence.errors) for one in findings]
        return Detection(findings, {"memory": measures.measures(found)} if found.ranks or found.nodes else {})


DETECTORS = (MemoryDetector(),)
