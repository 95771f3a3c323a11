"""Results from findings: the worst counts, each remedy is told once."""

from dtk.doctor.model import Remedy


def test_remedies_are_told_once():
    from dtk.doctor.model import Finding, judged

    fix = Remedy("do", "it")
    result = judged([Finding("warning", "a", fix), Finding("failure", "b", fix)], "fine")
    assert (result.status, result.summary, result.details, result.remedies) == ("failure", "b", ("warning: a",), (fix,))
