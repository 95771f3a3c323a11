"""Parts of findings about hangs: places, evidence from dumps, and the surest of several findings."""

from types import SimpleNamespace
from typing import Any

import pytest

from diagnostics.causes.hang._parts import after, assuming, last_places, lines, surest, where
from diagnostics.contract.findings import ASSUMED, EvidenceItem, Finding, Text, text_of
from diagnostics.evidence.model import Frame, LogFact


def finding(
    ranks: tuple[int, ...], confidence: float = 0.9, victims: tuple[int, ...] = (), status: str = "confirmed"
) -> Finding:
    return Finding(cause="hang.x", status=status, facts=Text("x"), confidence=confidence, ranks=ranks, victims=victims)  # type: ignore[arg-type]


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


FINDING = Finding(
    cause="hang.x", status="confirmed", facts=Text("It is so.", "1 of 4", "a dump"), confidence=0.9, ranks=(1,)
)


def assumed_job(*assumed: int) -> Any:
    return SimpleNamespace(waits=SimpleNamespace(assumed=set(assumed)))


def test_without_an_assumption_nothing_changes() -> None:
    assert assuming(assumed_job(), FINDING) is FINDING


@pytest.mark.parametrize(
    ("assumed", "words"),
    [((3,), "Rank 3 left no dump; the conclusion assumes that it is not in that group."),
     ((2, 3), "Ranks 2 and 3 left no dump; the conclusion assumes that they are not in that group.")],
)  # fmt: skip
def test_the_ranks_that_left_no_dump_are_named(assumed: tuple[int, ...], words: str) -> None:
    finding = assuming(assumed_job(*assumed), FINDING)
    text = text_of(finding)
    assert text.summary == f"It is so. {words}" and (text.measured, text.missing) == ("1 of 4", "a dump")
    assert (finding.confidence, finding.ranks) == (ASSUMED, (1,))


def test_only_what_is_confirmed_and_surer_is_weakened() -> None:
    weak = Finding(cause="hang.x", status="confirmed", facts=FINDING.facts, confidence=0.4)
    assert assuming(assumed_job(3), weak).confidence == 0.4
    undecided = Finding(cause="hang.x", status="undecided", facts=FINDING.facts, confidence=0.0)
    assert assuming(assumed_job(3), undecided) is undecided
