"""The table before and after a remedy: what was measured under other terms is not compared."""

import pytest

from diagnostics.contract.findings import Remedy
from dtk.verify.verify import Figures, Proof, table

REMEDY = Remedy("override", "fault=none", "it was injected")


def figures(tokens: float, terms: tuple[str, int | None]) -> Figures:
    return Figures("runs/a", "finished", " after step 8", (), tokens, None, terms)


@pytest.mark.parametrize(
    ("before", "after", "comparable"),
    [
        (("full", 8), ("full", 8), True),
        (("light", 8), ("full", 8), False),
        (("full", 20), ("full", 8), False),
        (("", None), ("", None), False),
    ],
)
def test_throughput_is_compared_under_the_same_terms(
    before: tuple[str, int | None], after: tuple[str, int | None], comparable: bool
) -> None:
    text = table(Proof("overlap.skew", REMEDY, figures(100.0, before), figures(250.0, after)))
    (line,) = (line for line in text.splitlines() if line.startswith("tokens/s"))
    assert line.split()[1:] == (["100.0", "250.0"] if comparable else ["not", "comparable", "not", "comparable"])


def run(
    exposed: tuple[float, ...],
    tokens: tuple[float, ...],
    state: str = "finished",
    peak: float | None = None,
) -> Figures:
    return Figures("r", state, " after step 8", (), None, peak, ("full", 8), exposed, tokens)


BEFORE = run((27.0, 26.0, 28.0, 27.0), (3100.0, 3131.0, 3160.0))


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (run((12.0, 11.0, 13.0, 12.0), (3500.0, 3531.0, 3560.0)), "the fix holds"),
        (
            run((41.0, 35.0, 47.0, 41.0), (2476.0, 2440.0, 2500.0)),
            "the cause is gone, but no gain was measured here (exposed communication 27.0 -> 41.0 ms per step,"
            " noise 3.0; tokens/s 3,131.0 -> 2,476.0, noise 29.0)",
        ),
        # one slow step is no loss, and a gain within the noise is none
        (run((12.0, 90.0, 13.0, 12.0), (3500.0, 500.0, 3560.0)), "the fix holds"),
        (run((26.8, 26.0, 28.0, 26.8), (3110.0, 3131.0, 3160.0)), "the cause is gone, but no gain was measured here"),
        (run((12.0, 11.0, 13.0, 12.0), (2400.0, 2431.0, 2460.0)), "the cause is gone, but no gain was measured here"),
        (run((), ()), "the cause is gone, but no gain was measured here (it was not measured in both runs)"),
        (run((1.0,), (9000.0,), "hung"), "the fix does not hold"),
    ],
)
def test_the_verdict_looks_at_what_the_cause_costs(after: Figures, verdict: str) -> None:
    proof = Proof("overlap.small_buckets", REMEDY, BEFORE, after)
    assert proof.verdict.startswith(verdict)
    assert proof.holds == (verdict == "the fix holds")
    assert table(proof).startswith(verdict)


def test_a_hang_holds_by_its_end_and_memory_by_its_peak() -> None:
    hung, slower = run((), (), "hung"), run((41.0,), (10.0,))
    assert Proof("hang.group_order", REMEDY, hung, slower).verdict == "the fix holds"
    full, less = run((), (), peak=2.0**30), run((), (), peak=2.0**29)
    assert Proof("memory.full_gather", REMEDY, full, less).holds
    assert "peak memory 1,024.0 -> 1,024.0 MiB, noise 20.5" in Proof("memory.full_gather", REMEDY, full, full).verdict
    killed = run((), (), "oom")
    assert Proof("memory.full_gather", REMEDY, killed, full).verdict == "the fix holds"


def test_why_throughput_is_not_compared() -> None:
    text = table(Proof("overlap.skew", REMEDY, figures(100.0, ("light", 10)), figures(250.0, ("full", 8))))
    reason = "before 10 steps with record=light, after 8 steps with record=full, and recording takes time"
    assert ["because", reason] in [line.split(maxsplit=1) for line in text.splitlines()]
    alike = Proof("overlap.skew", REMEDY, figures(100.0, ("full", 8)), figures(250.0, ("full", 8)))
    assert "not comparable" not in table(alike)
