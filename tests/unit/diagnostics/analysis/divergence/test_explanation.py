"""How one history differs from another: the edit, its place, what speaks for it; a backward pass left early."""

from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.explanation import (
    KINDS,
    Explanation,
    explain,
    left_loop,
    not_ready,
    origin,
    program_order,
)
from diagnostics.evidence.calls import Call
from tests.unit.diagnostics.analysis.calls import call, frame, history

LOOP = (10, 20, 30)


def explained(majority: list[Call], minority: list[Call], at: int) -> tuple[str, str, list[str]]:
    explanation = explain(majority, minority, at)
    return explanation.kind, explanation.place, [term.name for term in explanation.terms]


@pytest.mark.parametrize(
    ("minority", "at", "kind", "place"),
    [
        ((*LOOP, 10, 30, *LOOP, *LOOP), 5, "left_out", "within"),
        ((*LOOP, 10, 25, 20, 30, *LOOP, *LOOP), 5, "added", "within"),
        ((*LOOP, 10, 25, 30, *LOOP, *LOOP), 5, "other_operation", "within"),
        ((*LOOP, 20, 10, 30, *LOOP, *LOOP), 4, "other_operation", "within"),
    ],
)
def test_an_edit_behind_which_all_later_calls_agree(minority: tuple[int, ...], at: int, kind: str, place: str) -> None:
    majority, other = history(*LOOP * 4), history(*minority)
    assert explained(majority, other, at)[:2] == (kind, place)
    explanation = explain(majority, other, at)
    assert explanation.aligned and explanation.terms[0].name == "later calls agree" and explanation.confidence > 0.9


def test_whole_rounds_are_another_number_of_iterations() -> None:
    inner = (1, 2, 2, 2, 3)
    majority, fewer, more = (
        history(*times) for times in (inner * 3, (*inner, 1, 2, 2, 3, *inner), (*inner, 1, *[2] * 5, 3, *inner))
    )
    assert explained(majority, fewer, 9)[:2] == ("fewer_iterations", "round")
    assert explained(majority, more, 10)[:2] == ("more_iterations", "round")


def test_a_call_from_the_same_line_has_other_arguments() -> None:
    majority, minority = [call(1, size=8)], [call(1, size=9)]
    assert explained(majority, minority, 1) == ("other_arguments", "within", ["same line"])
    root = [call(1, op="broadcast", wire={"root": 0})], [call(1, 12, "broadcast", wire={"root": 1})]
    assert explained(*root, 1) == ("other_arguments", "within", ["same line"])


def test_sizes_of_one_line_that_both_belong_to_its_loop_show_a_call_left_out() -> None:
    """As a loop over parameters does on a rank that has no gradient of one of them."""
    parameters = [call(0, size=size) for size in (5, 6, 7)]
    texts = [replace(item, seq=seq) for seq, item in enumerate(parameters * 3, 1)]
    fewer = [*texts[:6], replace(texts[7], seq=7)]
    assert explained(texts, fewer, 7)[:2] == ("left_out", "within")
    assert explained(texts, [*texts[:6], call(7, size=99)], 7)[:2] == ("other_arguments", "within")


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((7, 5, 6), "left_out"),
        ((5, 6, 7), "added"),
        ((7,), "other_arguments"),  # One call that agrees may do so by chance.
        ((7, 7, 5), "other_arguments"),
        ((8, 7, 5), "other_arguments"),
    ],
)
def test_so_does_a_loop_whose_rounds_a_rarer_call_makes_unequal(sizes: tuple[int, ...], kind: str) -> None:
    shared = [*((5, 6, 7) * 6), 1, *((5, 6, 7) * 3), 5]
    sides = ([*shared, *rest] for rest in ((6, 7, 5, 6)[: len(sizes) + 1], sizes))
    majority, minority = ([call(seq, size=size) for seq, size in enumerate(side, 1)] for side in sides)
    assert explained(majority, minority, len(shared) + 1)[0] == kind


def test_a_round_is_whole_beside_a_rarer_call() -> None:
    step, log = (1, 2, 3), 9
    logs, other = (*step, *step, *step, log), (*step, *step, *step, log, 50)
    assert explained(history(*logs, *step, 50), history(*other), 11)[:2] == ("fewer_iterations", "round")


def test_where_one_line_is_unknown_only_the_two_calls_count() -> None:
    assert explained([call(1)], [call(1, None, size=9)], 1) == ("other_arguments", "within", ["line unknown"])
    assert explained([call(1)], [call(1, None, "barrier", None)], 1)[0] == "other_operation"


def test_the_same_calls_again_within_one_step_are_another_boundary_of_accumulation() -> None:
    """Two micro-batches a step: the minority goes through a third one while its peers update."""
    majority = [*history(1, 1, step=0), call(3, 9, "all_gather", step=0)]
    minority = [*history(1, 1, step=0), *history(1, start=3, step=0)]
    assert explained(majority, minority, 3) == ("more_iterations", "round", ["same calls again in the step"])


def test_the_past_of_the_minority_predicts_which_side_goes_on_as_before() -> None:
    """Both stand at position 8; the loop's next call is that of line 20."""
    past = history(*LOOP, *LOOP, 10)
    behind = call(8, 31, "barrier", None)
    kind, place, names = explained([*past, call(8, 20, size=20)], [*past, behind], 8)
    assert (kind, place) == ("fewer_iterations", "after") and "next line" in names
    kind, place, _ = explained([*past, behind], [*past, call(8, 20, size=20)], 8)
    assert (kind, place) == ("more_iterations", "after")


def test_a_call_between_the_lines_of_the_loop_is_in_a_branch_of_it() -> None:
    past = history(*LOOP, *LOOP, 10)
    inside = call(8, 15, "broadcast", 3)
    assert explained([*past, call(8, 20, size=20)], [*past, inside], 8)[:2] == ("added", "within")
    assert explained([*past, inside], [*past, call(8, 20, size=20)], 8)[:2] == ("left_out", "within")


def rounds(*firsts: int) -> list[Call]:
    """Rounds of a broadcast from one of these lines and a reduction, as DDP with buffers makes them."""
    pairs = [(call(2 * n + 1, line, "broadcast", 64), call(2 * n + 2, 90)) for n, line in enumerate(firsts)]
    return [item for pair in pairs for item in pair]


def test_a_call_that_took_the_place_of_its_peers_before_is_made_under_a_condition() -> None:
    """DDP's forward outside the loop's line sends the buffers, and the next one within it does not."""
    behind, evaluates = call(13, 99, "barrier", None), call(13, 29, "broadcast", 64)
    majority = [*rounds(54, 54, 54, 54, 54, 54), behind]
    minority = [*rounds(54, 54, 29, 54, 29, 54), evaluates]
    assert explained(majority, minority, 13) == ("added", "within", ["made alone"])
    # Two branches of one condition: each rank makes the call of its own one only, and this one a round more.
    minority = [*rounds(29, 29, 29, 29, 29, 29), evaluates]
    assert explained(majority, minority, 13)[:2] == ("more_iterations", "after")


def test_in_straight_code_who_stands_further_down_has_passed_the_earlier_line() -> None:
    majority = [call(1, 5, size=1), call(2, 10, "all_gather", 2)]
    minority = [call(1, 5, size=1), call(2, 40, "barrier", None)]
    assert explained(majority, minority, 2) == ("left_out", "within", ["past that line"])
    assert explained(minority, majority, 2) == ("other_operation", "within", ["neither came to the other"])


def test_a_single_position_shows_nothing_but_the_two_calls() -> None:
    assert explained([call(7, 10)], [call(7, 50, "barrier", None)], 7) == (
        "other_operation", "within", ["single position"],
    )  # fmt: skip


def test_gradients_that_are_not_ready() -> None:
    def bucket(seq: int, size: int) -> Call:
        return call(seq, 40, size=size, region="backward", step=1)

    past = [bucket(1, 100), bucket(2, 101)]
    explanation = explain([*past, bucket(3, 102)], [*past, call(3, 50, "all_gather", 1, step=1)], 3)
    assert (explanation.kind, explanation.place, explanation.self_evident) == ("gradients_not_ready", "backward", True)


def test_the_place_where_two_histories_really_parted() -> None:
    """Calls of equal sizes from other lines fit for a while: a run of them was left out earlier."""

    def at(seq: int, line: int, size: int = 8) -> Call:
        return call(seq, line, size=size)

    majority = [at(1, 1), at(2, 10), at(3, 20), at(4, 30), at(5, 40, 9), at(6, 50)]
    minority = [at(1, 1), at(2, 20), at(3, 30), at(4, 40, 9), at(5, 50)]
    assert origin(majority, minority, 4) == 2
    other = [at(1, 1), at(2, 11), at(3, 21), at(4, 31), at(5, 41)]
    assert origin(majority, other, 4) == 4, "nothing lines up again"
    same = history(1, 2, 3)
    assert origin(same, same, 3) == 3


def test_an_edit_begins_where_the_lines_part_if_it_explains_them() -> None:
    """Rounds of a loop of equal calls fit from the second one on as well, but leave the first one unexplained."""
    majority, minority = history(1, 2, *(5, 6) * 4), history(1, 2, 1, 2, 1, 2, *(5, 6) * 4)
    assert origin(majority, minority, 6) == 3


def test_calls_made_alone_directly_before_belong_to_the_same_divergence() -> None:
    """Line 9 is after the loop: its first call fits the peers' next one, its second does not."""
    majority = [call(at, line, size=line % 2 + 1) for at, line in enumerate((1, 2, 1, 2, 1, 2), 1)]
    minority = [*majority[:4], call(5, 9, size=2), call(6, 9, size=2)]
    assert origin(majority, minority, 6) == 5
    assert "made alone" not in explained(majority, minority, 6)[2]


def test_a_call_that_meets_two_of_the_peers_replaces_none_of_them() -> None:
    start = [call(1, 1), call(2, 3)]
    majority = [*start, call(3, 8), call(4, 12, "broadcast")]
    minority = [*start, call(3, 7), call(4, 7)]
    assert origin(majority, minority, 4) == 3
    assert explained(majority, minority, 3) == ("added", "within", ["peers past that line"])
    branches = [*start, call(3, 7), call(4, 9, "barrier")]
    assert origin(majority, branches, 4) == 4, "two branches of two calls each"


def test_a_rank_that_comes_round_a_loop_has_left_a_call_out_or_runs_on() -> None:
    start = [call(1, 10), call(2, 20)]
    explanation = explain([*start, call(3, 30, "broadcast")], [*start, call(3, 10)], 3)
    assert (explanation.kind, explanation.alternatives) == ("left_out", ("more_iterations",))
    again = explain([*start, call(3, 30)], [*start, call(3, 20)], 3)
    assert (again.kind, again.alternatives) == ("left_out", ("more_iterations",)), "no branch: both made that call"
    outer, inner = call(4, 10), call(4, 20, size=3)
    calls = [call(1, 10), call(2, 20, size=3), call(3, 30, "broadcast")]
    assert explained([*calls, inner], [*calls, outer], 4)[:2] == ("fewer_iterations", "round")
    assert explained([*calls, outer], [*calls, inner], 4)[:2] == ("more_iterations", "round")


def test_program_order_is_that_of_the_innermost_function_that_both_share() -> None:
    outer = frame(90)
    assert program_order((frame(3, "f"), outer), (frame(5, "f"), outer)) == -1
    assert program_order((frame(5, "f"), outer), (frame(3, "f"), outer)) == 1
    assert program_order((frame(3, "f"), frame(91)), (frame(5, "g"), outer)) == 1
    assert program_order((frame(3, "f"), outer), (frame(5, "g"), outer)) == 0
    assert program_order((), (outer,)) == 0


def test_a_call_against_the_loops_next_one() -> None:
    loop = call(4, 20, size=3)
    explanation = left_loop(call(4, 21, "barrier", None), loop, [loop], majority_goes_on=True)
    assert explanation is not None and (explanation.kind, explanation.place) == ("fewer_iterations", "after")
    assert left_loop(call(4, 18, size=3), loop, [loop], majority_goes_on=True) is None, "it replaces the loop's call"


def test_every_kind_is_in_the_table() -> None:
    assert KINDS["drop"]["within"] == "left_out" and KINDS["insert"]["after"] == "fewer_iterations"
    assert Explanation("swap", "within", (), (support("same line"),)).kind == "other_operation"


def test_two_lines_that_one_rank_passed_one_after_the_other_are_no_branches() -> None:
    """Line 29 begins the next round of an outer loop, of which line 32 is an inner one."""
    past = history(29, 32, 32, 32)
    majority, minority = (
        [*past, call(5, line, op=op, size=2)] for line, op in ((32, "reduce_scatter"), (29, "broadcast"))
    )
    assert explained(majority, minority, 5)[0] == "other_operation", "calls that were not made before"
    for at, (line, op) in enumerate(((29, "broadcast"), *[(32, "reduce_scatter")] * 3), 1):
        majority[at - 1] = minority[at - 1] = call(at, line, op=op, size=2)
    assert explained(majority, minority, 5)[0] != "other_operation"


def bucket(seq: int, size: int, **more: Any) -> Call:
    return call(seq, 40, size=size, region="backward", **more)


def metric(seq: int, **more: Any) -> Call:
    return call(seq, 50, "all_gather", 1, **more)


def names(ours: list[Call], theirs: list[Call], before: list[Call]) -> list[str]:
    return [term.name for term in not_ready(ours, theirs, before)]


def step(first: int, buckets: int, **more: Any) -> list[Call]:
    return [bucket(first + at, 100 + at, **more) for at in range(buckets)]


def test_the_recorded_steps_decide() -> None:
    before = step(1, 2, step=3)
    assert names([bucket(3, 102, step=3)], [metric(3, step=3)], before) == ["round already begun"]
    assert names([bucket(3, 102, step=4)], [metric(3, step=4)], before) == []


def test_the_number_of_buckets_that_ddp_announced_decides() -> None:
    def integers(seq: int, size: int) -> Call:
        return call(seq, None, "broadcast", size, wire={"dtypes": ("int32",)})

    announced = [integers(1, 21), integers(2, 3)]
    assert names([bucket(5, 102)], [metric(5)], [*announced, *step(3, 2)]) == ["round already begun"]
    assert names([bucket(6, 100)], [metric(6)], [*announced, *step(3, 3)]) == []


def test_two_announcements_are_of_two_models_and_say_nothing() -> None:
    pair = [call(1, None, "broadcast", 21, wire={"dtypes": ("int32",)})]
    pair.append(call(2, None, "broadcast", 3, wire={"dtypes": ("int32",)}))
    before = [*pair, *pair, *step(5, 2)]
    assert names([bucket(7, 102)], [metric(7)], before) == []


@pytest.mark.parametrize(("remaining", "expected"), [(2, ["round already begun"]), (3, [])])
def test_how_far_the_peers_are_in_their_round_decides(remaining: int, expected: list[str]) -> None:
    """Rounds of three buckets: with three left, the peers begin a round that this rank never entered."""
    before = [*step(1, 3), *step(4, 3), *step(7, 3 - remaining)]
    ours = [*step(10 - remaining, 3)[3 - remaining :], metric(10)]
    assert names(ours, [metric(ours[0].seq)], before) == expected


def test_a_call_that_was_never_made_before_is_behind_the_loop() -> None:
    assert names([bucket(2, 101)], [metric(2)], [bucket(1, 100)]) == []
    assert names([bucket(3, 101)], [metric(3)], [metric(1), bucket(2, 100)]) == ["round already begun"]


def test_before_the_first_bucket_only_one_and_the_same_step_says_something() -> None:
    assert names([bucket(1, 100, step=0)], [metric(1, step=0)], []) == ["backward begun"]
    assert names([bucket(1, 100, step=1)], [metric(1, step=0)], []) == []
    assert names([bucket(1, 100)], [metric(1)], []) == []


def test_outside_of_backward_nothing_is_said() -> None:
    assert names([metric(1)], [bucket(1, 100)], []) == []
    assert names([bucket(1, 100)], [bucket(1, 200)], []) == []
