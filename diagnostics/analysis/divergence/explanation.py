"""How the minority's calls differ from the majority's: the edit, its position, and the evidence for it."""

from collections import Counter
from itertools import pairwise
from math import inf
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence import evidence_terms, loop_exit, sequences
from diagnostics.analysis.divergence.evidence_terms import Support, Term, position, support
from diagnostics.analysis.divergence.identity import at_line, in_backward, on_path, replaces, same_statement, split_at
from diagnostics.analysis.divergence.sequences import common_prefixes, predict
from diagnostics.contract.files import table_beside
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Frame


def not_ready(waiting_calls: list[Call], other_calls: list[Call], before: list[Call]) -> tuple[Term, ...]:
    """Return the evidence that a rank left the backward pass without a bucket that its peers wait for; else ().

    Both sides' calls begin at the position of that bucket; `before` are the other side's calls before it.
    """
    expected, got = waiting_calls[0], other_calls[0]
    if not in_backward(expected) or in_backward(got):
        return ()
    if not before or not in_backward(before[-1]):
        same_step = expected.step is not None and expected.step == got.step
        return (support("backward begun"),) if same_step else ()
    part = _took_part(waiting_calls, before)
    if part is None:
        # A call after the loop is one that the rank never made before.
        part = at_line(got) in {at_line(call) for call in before}
    return (support("round already begun"),) if part else ()


def _took_part(waiting_calls: list[Call], before: list[Call]) -> bool | None:
    """Whether the rank issued some of the buckets of the step that its peers are in; None if that is not recorded."""
    expected, last = waiting_calls[0], before[-1]
    if expected.step is not None and last.step is not None:
        return expected.step == last.step
    buckets, start = _announced(before)
    if buckets:
        return sum(in_backward(call) and call.wire.op == "all_reduce" for call in before[start:]) % buckets != 0
    prediction = predict([at_line(call) for call in before], at_line(expected))
    if prediction is None or not prediction.whole or prediction.round < 2:
        return None
    if not all(in_backward(call) for call in before[-prediction.round :]):
        return None
    length = next((number for number, call in enumerate(waiting_calls) if not in_backward(call)), len(waiting_calls))
    return length % prediction.round != 0


def _announced(before: list[Call]) -> tuple[int, int]:
    """Return the number of buckets that DDP rebuilt after its first backward pass and the index of the next call.

    Rank 0 then broadcasts two int32 tensors: the bucket of each parameter with one more number, and the sizes of the
    buckets (torch, reducer.cpp, sync_bucket_indices). A second pair belongs to another model: the result is (0, 0).
    """
    pairs = []
    for at in range(len(before) - 1):
        first, second = before[at].wire, before[at + 1].wire
        kinds = {first.op, second.op, *first.dtypes, *second.dtypes}
        if kinds != {"broadcast", "int32"} or not len(first.amounts) == len(second.amounts) == 1:
            continue
        if 0 < second.amounts[0] < first.amounts[0]:
            pairs.append((second.amounts[0], at + 2))
    return pairs[0] if len(pairs) == 1 else (0, 0)


Kind = Literal[
    "other_arguments", "other_operation", "left_out", "added", "fewer_iterations", "more_iterations",
    "gradients_not_ready",
]  # fmt: skip
Deviation = Literal["change", "substitute", "swap", "drop", "insert"]
"""What the minority did: `change` means other arguments of the same call; for the others see `sequences.EditKind`."""
Place = Literal["within", "round", "after", "backward", "ended"]
"""Where: within the loop or in straight code; a whole round of the loop; in a call after the loop; in the backward
pass, whose reductions autograd issues; `ended`: the minority ended normally afterwards."""
Edit = tuple[Deviation, Place]
KINDS: dict[Deviation, dict[Place, Kind]] = table_beside(__file__)
_ROUNDS_OF_ONE_CALL = 2
"""Number of equal calls before a single call that make it a round of a loop; one may be the other half of a pair."""
_REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter"}
_LONGEST_SEARCH = 256  # Number of positions before the first mismatch in which an earlier edit is searched.


class Explanation(Struct, frozen=True):
    """How one side differs from the other."""

    deviation: Deviation
    place: Place
    calls: tuple[Call, ...]
    """The dropped or inserted calls; for all other kinds the two calls that meet, the majority's first."""
    terms: tuple[Term, ...]
    """The evidence, the decisive term first."""
    aligned: bool = False
    """Whether the edit was found by aligning the histories of both sides."""
    alternatives: tuple[Kind, ...] = ()
    """Other kinds that explain the calls equally well."""

    @property
    def kind(self) -> Kind:
        """The kind of the table."""
        return KINDS[self.deviation][self.place]

    @property
    def confidence(self) -> float:
        """Probability of the kind, from the sum of the terms' weights."""
        return evidence_terms.probability(abs(sum(term.weight for term in self.terms)))

    @property
    def self_evident(self) -> bool:
        """Whether the program or the minority's own calls show that it deviates, whatever the sizes of the sides."""
        names = {term.name for term in self.terms}
        return bool(names & evidence_terms.SHOWS_WHO) or names >= evidence_terms.OCCASIONAL


def explain(majority: list[Call], minority: list[Call], position: int) -> Explanation:
    """Explain a divergence: both sides, calls oldest first, made a call at `position`, and the two differ."""
    majority_tail = [call for call in majority if call.seq >= position]
    minority_tail = [call for call in minority if call.seq >= position]
    before = [call for call in minority if call.seq < position]
    expected, got = majority_tail[0], minority_tail[0]
    if same_statement(expected, got):
        past, in_order = [at_line(call) for call in before], None
        if at_line(got) in past and (turn := predict(past, at_line(expected))) is not None:
            # Both sizes belong to the line's loop: a call of it was left out, added or moved.
            aligned = _aligned(majority_tail, minority_tail, before)
            if turn.whole:
                in_order = aligned or _predicted(expected, got, before)
            elif aligned is not None and aligned.terms[0].count > 1:  # One call may agree by chance.
                in_order = aligned
        return in_order or Explanation("change", "within", (expected, got), (support("same line"),))
    if bool(expected.site) != bool(got.site):
        # The loop reduces this size here in every round, so another size belongs to another call. That does not hold
        # for gathers: a last batch may be shorter, and objects differ in size anyway.
        prediction = predict([at_line(call) for call in before], at_line(expected))
        is_periodic = expected.wire.op in _REDUCTIONS and prediction is not None and prediction.whole
        elsewhere = _predicted(expected, got, before) if is_periodic else None
        return elsewhere or what_meets(expected, got, "line unknown")
    if position != 1 and len(majority) == len(minority) == 1:
        in_order = _program_order(expected, got, before) if loop_exit.straight(expected, got) else None
        return _by_text_alone(expected, got) or in_order or what_meets(expected, got, "single position")
    if (aligned := _aligned(majority_tail, minority_tail, before)) is not None:
        return aligned
    if terms := not_ready(majority_tail, minority_tail, before):
        return Explanation("drop", "backward", (expected,), terms)
    by_calls = _accumulation(expected, got, before) or _made_alone(majority, got, before)
    if explanation := by_calls or _predicted(expected, got, before):
        return explanation
    # The source may show who deviates: later in a loop is earlier than its next round's first line.
    got, expected = loop_exit.with_caller(got, expected), loop_exit.with_caller(expected, got)
    by_text = _by_text_alone(expected, got, before)
    if by_text is not None and (by_text.self_evident or by_text.terms[0].name == "source branches"):
        return by_text
    met: Support = "same operation" if expected.wire.op == got.wire.op else "other operation"
    again = at_line(got) in map(at_line, minority_tail[1 : len(majority_tail)])
    return _program_order(expected, got, before, again=again) or what_meets(expected, got, met)


def by_condition(expected: Call, got: Call) -> Explanation | None:
    """Explain two calls of which the source makes one alone conditional: the side of the other one passed it by."""
    met = [bool(loop_exit.conditions(*pair)) for pair in ((expected, got), (got, expected))]
    edit: tuple[Deviation, Call] = ("drop", expected) if met[0] else ("insert", got)
    return Explanation(edit[0], "within", edit[1:], (support("source condition"),)) if met[0] != met[1] else None


def origin(majority: list[Call], minority: list[Call], position: int) -> int:
    """Return the position at which the histories really diverge, which may be before the first mismatch at `position`.

    Calls from different lines alone are no divergence: two branches may issue the same call, and it completes. They are
    one if dropping or inserting calls there aligns the lines of all later calls.
    """
    places = {call.seq: number for number, call in enumerate(minority)}
    edits: list[tuple[int, int]] = []
    for number, call in enumerate(majority):
        if not position - _LONGEST_SEARCH <= call.seq < position or call.seq not in places:
            continue
        other = minority[places[call.seq]]
        if call.site is None or other.site is None or call.stack == other.stack:
            continue
        smallest = _edit(majority[number:], minority[places[call.seq] :])
        if smallest is not None and smallest.kind in {"drop", "insert"}:
            edits.append((smallest.count, call.seq))
    # A larger edit at an earlier, harmless position fits as well; the one with the fewest calls is chosen. But an edit
    # that begins behind other lines leaves these unexplained, if one that begins with them explains all.
    starts = {seq for _, seq in edits}
    if edits:
        return min((count, seq) for count, seq in edits if seq - 1 not in starts)[1]
    start = _start_of_other_lines(majority, minority, position)
    return start if explain(majority, minority, start).deviation in {"drop", "insert"} else position


def _start_of_other_lines(majority: list[Call], minority: list[Call], position: int) -> int:
    """Return the first of the positions directly before `position` at which the sides were at different lines.

    Different lines may be two branches, unless the peers go on in a loop or two of their calls met the same one.
    """
    calls = {call.seq: call for call in majority}
    pairs = [(at_line(calls[call.seq]), at_line(call)) for call in minority if call.seq in calls]
    end = start = sum(call.seq < position for call in minority if call.seq in calls)
    times = Counter(pairs[:end])  # A pair that met before is no divergence either.
    while start and pairs[start - 1][0] != pairs[start - 1][1] and times[pairs[start - 1]] == 1:
        start -= 1
    expected, got = pairs[start]
    in_loop = expected in (line for _, line in pairs[:start])
    again = got in (line for _, line in pairs[start + 1 : end + 1])
    return position - (end - start) * (in_loop or again)


def program_order(first: tuple[Frame, ...], second: tuple[Frame, ...]) -> int:
    """Return -1 if two stacks part within a function and the first is at the earlier line, 1 if the later, else 0."""
    if (frames := split_at(first, second)) is None:
        return 0
    return -1 if frames[0].line < frames[1].line else 1


def _edit(majority: list[Call], minority: list[Call]) -> sequences.Edit | None:
    enough = 1 if majority[0].site and minority[0].site else 2  # Without lines one equal call may well be coincidence.
    for identity in (on_path, at_line):  # A wrapper on one side only changes the path of its calls, not their line.
        most, fewest = ([identity(call) for call in calls[: sequences.LONGEST]] for calls in (majority, minority))
        if edit := sequences.smallest_edit(most, fewest, enough):
            return edit
    return None


def _aligned(majority: list[Call], minority: list[Call], before: list[Call]) -> Explanation | None:
    smallest = _edit(majority, minority)
    if smallest is None:
        return None
    agree = (support("later calls agree", smallest.agreeing),)
    if smallest.kind in {"substitute", "swap"}:
        at_one_line = majority[0].site == minority[0].site and majority[0].wire.op == minority[0].wire.op
        deviation: Deviation = "change" if at_one_line and smallest.kind == "substitute" else smallest.kind
        return Explanation(deviation, "within", (majority[0], minority[0]), agree, aligned=True)
    longer, shorter = (majority, minority) if smallest.kind == "drop" else (minority, majority)
    calls = tuple(longer[: smallest.count])
    place: Place = "round" if _whole_rounds(calls, before, longer[smallest.count], shorter[0]) else "within"
    return Explanation(smallest.kind, place, calls, agree, aligned=True)


def _whole_rounds(run: tuple[Call, ...], before: list[Call], after: Call, peer_call: Call) -> bool:
    """Whether `run` is whole rounds of the loop in `before`; `after`, `peer_call`: both sides' calls after it."""
    if after.step is not None and after.step == peer_call.step:
        return False
    tokens = [on_path(call) for call in run]
    repeats = common_prefixes(tokens)
    size = next((at for at in range(1, len(run)) if len(run) % at == 0 and repeats[at] == len(run) - at), len(run))
    rounds = _ROUNDS_OF_ONE_CALL if len(run) == 1 else 1
    if [on_path(call) for call in before[-size * rounds :]] == tokens[:size] * rounds:
        return True
    # The round before may have had more calls, such as a log line's: then two equal rounds followed each other earlier.
    past = [on_path(call) for call in before[-_LONGEST_SEARCH:]]
    common = common_prefixes([*tokens[:size], None, *past])[size + 1 :]
    return size > 1 and any(common[at] >= size and common[at + size] >= size for at in range(len(past) - size))


def _accumulation(expected: Call, got: Call, before: list[Call]) -> Explanation | None:
    """Explain by gradient accumulation: the minority makes the same calls again within a step."""
    if got.step is None or got.step != expected.step:
        return None
    for back, call in enumerate(reversed(before[-sequences.MOST_CALLS :]), 1):
        if call.step != got.step or at_line(call) == at_line(expected):
            return None
        if at_line(call) == at_line(got):
            return Explanation("insert", "round", (got,), (support("same calls again in the step", back),))
    return None


def _made_alone(majority: list[Call], got: Call, before: list[Call]) -> Explanation | None:
    """Explain a call that the minority also made earlier, at positions where the majority made calls that both make.

    The earlier ones completed with each other, so nothing failed. This is not the case of two branches of a condition,
    where each rank only makes the call of its own branch.
    """
    lines = {call.seq: at_line(call) for call in majority}
    back = max((call.seq for call in before if lines.get(call.seq) == at_line(call)), default=0)
    # Calls made alone directly before are part of the same divergence: the minority has not come back from it.
    places = {call.seq for call in before if call.seq < back and at_line(call) == at_line(got)}
    met = {at_line(call) for call in majority if call.seq in places}
    shared = {at_line(call) for call in before}
    if not met or got.site is None or not met <= shared or any(at_line(call) == at_line(got) for call in majority):
        return None
    return Explanation("insert", "within", (got,), (support("made alone", len(places)),))


def _predicted(expected: Call, got: Call, before: list[Call]) -> Explanation | None:
    """Explain by prediction: the side whose call follows the longer repeated suffix is right, the other deviates."""
    past = [at_line(call) for call in before]
    predictions = [predict(past, at_line(call)) for call in (expected, got)]
    contexts = [prediction.context if prediction is not None else 0 for prediction in predictions]
    majority_goes_on = contexts[0] > contexts[1]
    ahead, deviating = (expected, got) if majority_goes_on else (got, expected)
    prediction = predictions[0] if majority_goes_on else predictions[1]
    if prediction is None:
        return None
    body = before[-prediction.round :]
    if at_line(deviating) not in {at_line(call) for call in body} and contexts[0] != contexts[1]:
        return left_loop(deviating, ahead, body, majority_goes_on=majority_goes_on)
    ways = {True: _way(before, expected, got), False: _way(before, got, expected)}
    rounds = {drop: bool(way) and _whole_rounds(way, before, expected, got) for drop, way in ways.items()}
    drop = majority_goes_on
    if not ways[drop] or (rounds[not drop] and len(ways[not drop]) < len(ways[drop])):
        drop = not drop  # One more or one less round of an inner loop is the smaller edit.
    is_after = drop and rounds[False] and loop_exit.source_says(expected, [got]) == "outside"
    if is_after and not loop_exit.conditions(expected, got):  # Nothing lets a rank leave out the call after that loop.
        return Explanation("insert", "round", ways[False], (position("source after"),))
    if contexts[0] == contexts[1]:
        # Both calls followed such a suffix: one starts another round, the other leaves the loop.
        drop = rounds[True] or (not rounds[False] and 0 < len(ways[True]) < (len(ways[False]) or len(past) + 1))
    if not ways[drop]:
        return None
    term = support("later in the round" if drop else "round not finished by the peers", len(ways[drop]))
    by_calls = Explanation("drop" if drop else "insert", "round" if rounds[drop] else "within", ways[drop], (term,))
    # What each rank decides by its own clock or values comes after varying numbers of rounds, which then tell nothing.
    by_branch = by_condition(expected, got)
    places = [place for place, other in enumerate(past) if by_branch and other == at_line(by_branch.calls[0])]
    if len({later - earlier for earlier, later in pairwise(places)}) > 1:
        by_text = _by_text_alone(expected, got, before)
        if by_text is not None and by_text.place == "within":
            return replace(by_text, alternatives=(by_calls.kind,))
    return by_calls


def _way(past: list[Call], start: Call, end: Call) -> tuple[Call, ...]:
    """Return `start` and the calls that followed it up to `end`, of the shortest such stretch in `past`; () if none."""
    best: tuple[Call, ...] = ()
    last = None
    for place, call in enumerate(past):
        if at_line(call) == at_line(end) and last is not None and (not best or place - last <= len(best)):
            best = (start, *past[last + 1 : place])
        if at_line(call) == at_line(start):
            last = place
    return best


def left_loop(deviating: Call, ahead: Call, body: list[Call], *, majority_goes_on: bool) -> Explanation | None:
    """Explain a call that a loop does not make in every round, while the peers make its next call; or return None.

    `deviating` is the call of the side that has left the loop, or is in a branch of it; `ahead` is the loop's next
    call, made by the other side (`majority_goes_on`: the majority); `body` are the calls of one round of the loop.
    """
    expected, got = (ahead, deviating) if majority_goes_on else (deviating, ahead)
    if loop_exit.source_says(ahead, body) == "outside":
        return None  # The same function, called after the loop: both sides have left it.
    at = loop_exit.loop_position(deviating, body)
    is_after = at.place == "after"
    if not is_after:
        if loop_exit.source_branches(ahead, deviating):
            return Explanation("substitute", "within", (expected, got), (support("source branches"),))
        if replaces(ahead, deviating):
            return None
    deviation: Deviation = "insert" if majority_goes_on else "drop"
    # A side that is outside of the loop while the others are in backward has left it, however many ranks it has.
    left_backward = is_after and in_backward(ahead) and not in_backward(deviating)
    terms = (*at.terms, support("peers in backward")) if left_backward else at.terms
    shown = (expected, got) if is_after else (deviating,)
    others = () if at.clear else (KINDS[deviation]["within" if is_after else "after"],)
    return Explanation(deviation, at.place, shown, terms, alternatives=others)


def _program_order(expected: Call, got: Call, before: list[Call], *, again: bool = False) -> Explanation | None:
    """Explain by the order of lines: in straight code, a rank at a later line has passed the earlier one.

    `again`: the minority makes the same call where the peers make the next one, so it does not replace one of theirs.
    """
    order = program_order(got.stack, expected.stack)
    passed, peers_passed = (support("past that line"),), (support("peers past that line"),)
    lines = {at_line(call) for call in before}
    # A rank that repeats its last call, or goes back from it to an earlier line, begins another round of a loop.
    rounds = [
        at_line(call) in lines
        and (before[-1].stack in (call.stack, call.stack[:1]) or program_order(call.stack, before[-1].stack) < 0)
        for call in (expected, got)  # A caller may be known by the source alone.
    ]
    if order and all(rounds):  # Of two loops, one in the other: the later line is of the inner one.
        if order < 0:
            return Explanation("drop", "round", (expected,), passed)
        return Explanation("insert", "round", (got,), peers_passed)
    if order > 0:
        missed = _way(before, expected, got) or (expected,)
        return Explanation("drop", "within", missed, passed)
    if order == 0:
        return None
    if (alone := _for_one_rank(got, expected)) is not None:
        return alone
    if rounds[1] and at_line(expected) not in lines:  # The peers' call is in that loop, or after it.
        if loop_exit.straight(got, expected):
            return Explanation("insert", "round", (got,), peers_passed)
        return Explanation("drop", "within", (expected,), passed, alternatives=("more_iterations",))
    if again:
        return Explanation("insert", "within", (got,), peers_passed)
    # One rank that made both calls is no such evidence, and the source would show an `if` with its `else`.
    are_branches = not ({at_line(expected), at_line(got)} <= lines or loop_exit.straight(got, expected))
    if are_branches and (expected.wire.op == got.wire.op or replaces(expected, got)):
        return what_meets(expected, got, "branches of a function")
    if expected.stack[1:] == got.stack[1:] and at_line(expected) not in lines:
        return Explanation("substitute", "within", (expected, got), (support("neither came to the other"),))
    return Explanation("insert", "within", (got,), peers_passed)


def _for_one_rank(got: Call, expected: Call, *, again: bool = False) -> Explanation | None:
    alone = loop_exit.for_one_rank(got, expected, again=again)
    return Explanation("insert", "within", (got,), (position("source one rank"),)) if alone else None


def _by_text_alone(expected: Call, got: Call, before: list[Call] | None = None) -> Explanation | None:
    """Explain calls by branches or a loop around them; `before`: the minority's earlier calls, None if not known."""
    if loop_exit.source_branches(expected, got):
        return what_meets(expected, got, "source branches")
    if (alone := _for_one_rank(got, expected, again=True)) is not None:
        return alone
    sides = [(loop_exit.by_text(*pair), *pair) for pair in ((got, [expected]), (expected, [got]))]
    # An inner loop that one side has left tells more than the outer loop, which contains both calls.
    term, call, (loop_call,) = max(sides, key=lambda side: side[0].weight if side[0] is not None else -inf)
    if term is None:
        return None
    is_after, is_before = term.weight > 0, program_order(call.stack, loop_call.stack) < 0
    if is_after and is_before and loop_exit.by_text(loop_call, [call]) is not None:
        return None  # One loop contains both: the call may be the first of the next round.
    if is_after and not is_before:
        goes_on = Explanation("drop" if call is expected else "insert", "after", (expected, got), (term,))
        functions = [replace(own.site, line=0) for own in (loop_call, *(before or ())[-1:]) if own.site]
        if (way_in := loop_exit.way_in(loop_call, call)) == "none" or functions[1:] == functions[:1]:
            return goes_on
        # The other side may never have entered the function with that loop: no call before is of it.
        if way_in == "one rank" and loop_call is got:
            return Explanation("insert", "within", (got,), (position("source one rank"),))
        return replace(goes_on, alternatives=("added" if loop_call is got else "left_out",)) if before is None else None
    # Of two calls in one loop, the one in a branch is not made in every round.
    by_branch = by_condition(expected, got)
    either = Explanation("insert", "within", (got,), (term,))
    return replace(by_branch, terms=(term, position("any call"))) if by_branch is not None else either


def what_meets(expected: Call, got: Call, term: Support, *, is_other: bool = False) -> Explanation:
    """Explain two calls that meet by what they are; `is_other` says whether they are known to be two statements."""
    deviation: Deviation = "substitute" if is_other or expected.wire.op != got.wire.op else "change"
    return Explanation(deviation, "within", (expected, got), (support(term),))
