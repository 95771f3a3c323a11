"""Divergences of single calls: a misfit of bytes, a call against a backward pass, lines of a running job."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import position, support
from diagnostics.analysis.divergence.explanation import Explanation
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import by_lines, misfit, outside_backward
from diagnostics.analysis.pairwise import Misfit
from diagnostics.analysis.vote import Vote
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame

KEY = GroupKey("dtk", "0", "default_pg")
PROGRAM = """\
def train(batches):
    ready()
    for step in range(len(batches)):
        load()
        reduce(batches[step])
    save()
"""


def call(op: str, *stack: Frame, seq: int = 4, region: str = "") -> Call:
    return Call(KEY, seq, Described(Wire(op, (8,), ("float32",)), op), False, 5.0, stack=stack, region=region)


def test_a_misfit_names_both_ends_and_the_bytes() -> None:
    sent, taken = call("all_to_all", seq=7), call("all_to_all", seq=7)
    divergence = misfit(Misfit(sender=1, receiver=3, sent=64, expected=32, calls=(sent, taken)))
    assert (divergence.kind, divergence.culprits, divergence.payload) == ("other_arguments", (1, 3), (64, 32))
    assert (divergence.majority_rank, divergence.minority_rank, divergence.position, divergence.tie) == (3, 1, 7, False)


def test_a_call_against_a_backward_pass_that_came_to_it_later_is_one_behind_the_loop() -> None:
    minority = call("barrier", Frame("/job/train.py", 30, "main"))
    majority = call("all_reduce", Frame("/job/train.py", 12, "step"), region="backward")
    divergence = outside_backward((0, 1, 3), (2,), majority, minority, came_later=True)
    assert divergence is not None and divergence.kind == "fewer_iterations"
    assert (divergence.majority_rank, divergence.minority_rank, divergence.culprits, divergence.peers) == (
        0,
        2,
        (2,),
        (0, 1, 3),
    )
    assert [term.name for term in divergence.explanation.terms] == ["peers came later"]


def test_a_call_against_a_backward_pass_is_weighed_by_where_it_stands() -> None:
    minority = call("barrier", Frame("/job/train.py", 13, "step"))
    majority = call("all_reduce", Frame("/job/train.py", 12, "step"), Frame("/job/train.py", 40, "main"))
    divergence = outside_backward((0, 1), (2,), majority, minority, came_later=False)
    assert divergence is not None and "next line" in {term.name for term in divergence.explanation.terms}


EPOCHS = """\
def epoch(batches):
    for batch in batches:
        backward(batch)
def main(files):
    for number in range(3):
        epoch(files)
        reduce(number)
"""


def test_a_call_behind_a_loop_further_in_was_made_by_who_left_that_loop(tmp_path: Path) -> None:
    """The loop over epochs holds both lines; the one over batches, in another function, holds only the backward."""
    (tmp_path / "train.py").write_text(EPOCHS)
    file = str(tmp_path / "train.py")
    minority = replace(call("all_reduce", Frame(file, 7, "main")), created_s=4e9)
    stack = (Frame(file, 3, "epoch"), Frame(file, 6, "main"))
    majority = replace(call("all_reduce", *stack, region="backward"), created_s=4e9)
    divergence = outside_backward((0, 1), (2,), majority, minority, came_later=False)
    assert divergence is not None and (divergence.kind, divergence.culprits) == ("fewer_iterations", (2,))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def divergence_of(path: Path, *terms: str) -> Divergence:
    """Rank 2 waits behind the loop, the others in it."""
    majority, minority = (call(op, Frame(str(path), line, "train")) for op, line in (("all_reduce", 5), ("barrier", 6)))
    majority, minority = (replace(item, created_s=path.stat().st_mtime + 1) for item in (majority, minority))
    explanation = Explanation("insert", "after", (majority, minority), (position("source after"),))
    return Divergence(Vote(KEY, 0, ((0, 1), (2,))), 0, 2, majority, minority, explanation, (2,), tie=False)


def test_loop_variables_tell_who_left_the_loop_early(program: Path) -> None:
    divergence, place = divergence_of(program), (str(program), "train")
    early = by_lines(divergence, {place: {"step": 9}}, {place: {"step": 7}}, default_group=True)
    assert early == divergence and early.kind == "fewer_iterations"
    alike = by_lines(divergence, {place: {"step": 9}}, {place: {"step": 9}}, default_group=True)
    assert alike.kind == "left_out", "as many rounds as the others: it left out a call"


def test_without_variables_only_the_lines_speak(program: Path) -> None:
    weak = by_lines(divergence_of(program), {}, {}, default_group=True)
    assert weak.kind == "fewer_iterations" and weak.explanation.terms == (support("past that line"),)


@pytest.mark.parametrize("guess", [True, False])
def test_a_guess_or_another_group_leaves_both_kinds_open(program: Path, guess: bool) -> None:
    divergence = divergence_of(program)
    if guess:
        terms = (support("line unknown"),)
        divergence = replace(divergence, explanation=replace(divergence.explanation, terms=terms))
    result = by_lines(divergence, {}, {}, default_group=guess)
    assert (result.kind, result.explanation.alternatives) == ("added", ("fewer_iterations",))
