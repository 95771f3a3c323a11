"""Parts of findings about hangs: places, evidence from dumps, and the surest of several findings."""

from diagnostics.causes.hang._parts import after, last_places, lines, surest, where
from diagnostics.contract.findings import EvidenceItem, Finding, Stated
from diagnostics.evidence.model import Frame, LogFact


def finding(
    ranks: tuple[int, ...], confidence: float = 0.9, victims: tuple[int, ...] = (), status: str = "confirmed"
) -> Finding:
    return Finding(
        cause="hang.x", status=status, facts=Stated("x"), confidence=confidence, ranks=ranks, victims=victims
    )  # type: ignore[arg-type]


def test_of_findings_about_the_same_ranks_the_surest_is_kept() -> None:
    weak, strong = finding((1,), 0.6), finding((1,), 0.9)
    assert surest([weak, strong]) == surest([strong, weak]) == [strong]
    assert surest([]) == []


def test_a_place_is_the_line_of_a_call_or_a_frame() -> None:
    frame = Frame("/job/train.py", 12, "step")
    assert where(3, frame, "waits")[0].does == "waits" and where(3, frame)[0].line == 12
    assert where(3, None) == ()


def test_lines_of_logs_are_evidence() -> None:
    fact = LogFact("cuda_oom", 3, "job.log", 7, "out of memory")
    assert lines([fact]) == (EvidenceItem("log", "job.log", "out of memory", 7),)


def test_without_a_call_nothing_was_seen_last() -> None:
    assert last_places(None) == () and after(None, (1,)) == ""
