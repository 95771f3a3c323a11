"""Random programs of several ranks and groups, an edit planted on a minority, and what of it the divergence tells.

A program is a tree of loops, functions and calls. Every call has a line of its own, loops may stand in functions of
their own. The same tree runs on all ranks; the edit changes what the minority does once, or how often a loop runs.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.analysis.divergence.find import Divergence, find
from diagnostics.analysis.divergence.identity import at_line, differing_parts
from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import digest
from diagnostics.evidence.calls import Call, Described, Dump, GroupKey, Wire
from diagnostics.evidence.model import Frame

Planted = Literal["insert", "drop", "swap", "change", "substitute", "stop early", "run on"]
PLANTED: tuple[Planted, ...] = ("insert", "drop", "swap", "change", "substitute", "stop early", "run on")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
FILE = "/job/train.py"


class Site(Struct, frozen=True):
    """A call of the program."""

    group: int
    wire: Wire
    stack: tuple[Frame, ...]

    @property
    def described(self) -> Described:
        return _described(self.wire)

    @property
    def token(self) -> object:
        return (self.wire, self.stack[0])


class Loop(Struct, frozen=True):
    number: int
    times: int
    body: tuple["Site | Loop", ...]


Node = Site | Loop


class Writer:
    """Writes a program line by line."""

    def __init__(self, chance: random.Random, groups: int) -> None:
        self.chance, self.groups = chance, groups
        self.lines: dict[str, int] = {}
        self.loops = 0

    def line(self, function: str) -> int:
        self.lines[function] = self.lines.get(function, 100 * (len(self.lines) + 1)) + self.chance.randint(3, 6)
        return self.lines[function]

    def wire(self) -> Wire:
        op = self.chance.choice(OPERATIONS)
        if op == "barrier":
            return Wire(op, (), ())
        root = 0 if op == "broadcast" else None
        return Wire(op, (self.chance.randint(1, 6),), (self.chance.choice(["float32", "bfloat16"]),), root)

    def site(self, path: tuple[Frame, ...], function: str) -> Site:
        own = Frame(FILE, self.line(function), function)
        return Site(self.chance.randrange(self.groups), self.wire(), (own, *path))

    def block(self, path: tuple[Frame, ...], function: str, depth: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for _ in range(self.chance.randint(1, 4)):
            if depth and self.chance.random() < 0.4:
                self.loops += 1
                number, inner, way = self.loops, function, path
                if self.chance.random() < 0.5:
                    inner, way = f"function_{number}", (Frame(FILE, self.line(function), function), *path)
                body = self.block(way, inner, depth - 1)
                nodes.append(Loop(number, self.chance.randint(2, 5), body))
            else:
                nodes.append(self.site(path, function))
        return tuple(nodes)


def run(nodes: Iterable[Node], once: dict[tuple[int, int], int], seen: dict[int, int]) -> list[Site]:
    """Return the calls in order. `once`: (loop, entry) -> how often it runs that time."""
    calls: list[Site] = []
    for node in nodes:
        if isinstance(node, Site):
            calls.append(node)
            continue
        seen[node.number] = seen.get(node.number, 0) + 1
        for _ in range(once.get((node.number, seen[node.number]), node.times)):
            calls += run(node.body, once, seen)
    return calls


class Case(Struct, frozen=True):
    """A program with one planted edit."""

    planted: Planted
    world: int
    members: tuple[tuple[int, ...], ...]
    """Ranks of each group."""
    minority: tuple[int, ...]
    common: tuple[Site, ...]
    edited: tuple[Site, ...]
    blocked: bool
    """Whether each rank stops at its first call that does not fit, as under gloo; else all its calls are recorded."""


def plant(chance: random.Random) -> Case | None:
    """Return a random case; None where the edit changes nothing that other ranks could see."""
    groups = chance.randint(1, 3)
    writer = Writer(chance, groups)
    nodes = (*writer.block((), "main", 3), *writer.block((), "main", 3))
    sites = run(nodes, {}, {})
    planted = chance.choice(PLANTED)
    world = chance.randint(3, 7)
    minority = tuple(sorted(chance.sample(range(world), chance.randint(1, (world - 1) // 2))))
    others = [rank for rank in range(world) if rank not in minority]
    # Each group holds the minority and a majority, so that a vote can tell them apart.
    size = len(minority) + 1
    members = tuple(
        tuple(range(world))
        if not number
        else tuple(sorted({*minority, *chance.sample(others, min(size, len(others)))}))
        for number in range(groups)
    )
    edited = _edit(chance, writer, planted, nodes, sites)
    if not 4 <= len(sites) <= 600 or edited is None or edited == sites:
        return None
    return Case(planted, world, members, minority, tuple(sites), tuple(edited), chance.random() < 0.5)


def _edit(
    chance: random.Random, writer: Writer, planted: Planted, nodes: tuple[Node, ...], common: list[Site]
) -> list[Site] | None:
    if planted in {"stop early", "run on"}:
        seen: dict[int, int] = {}
        run(nodes, {}, seen)
        if not seen:
            return None
        number = chance.choice(sorted(seen))
        loop = next(item for item in _loops(nodes) if item.number == number)
        by = chance.randint(1, loop.times - 1) if planted == "stop early" else chance.randint(1, 3)
        times = loop.times - by if planted == "stop early" else loop.times + by
        return run(nodes, {(number, chance.randint(1, seen[number])): times}, {})
    at = chance.randrange(len(common))
    here = common[at]
    if planted == "insert":
        new = _above(here, writer.wire())
        return [*common[:at], *[new] * chance.randint(1, 2), *common[at:]]
    if planted == "drop":
        return [*common[:at], *common[at + chance.randint(1, 3) :]]
    if planted == "swap":
        later = [place for place in range(at + 1, len(common)) if common[place].group == here.group]
        if not later or common[later[0]].token == here.token:
            return None
        between = common[at + 1 : later[0]]
        return [*common[:at], common[later[0]], *between, here, *common[later[0] + 1 :]]
    if planted == "change":
        if not here.wire.amounts:
            return None
        wire = here.wire._replace(amounts=(here.wire.amounts[0] + 10,))
        return [*common[:at], replace(here, wire=wire), *common[at + 1 :]]
    wire = Wire("all_to_all_uneven", (chance.randint(20, 30),), ("float32",))
    return [*common[:at], _above(here, wire), *common[at + 1 :]]


def _above(site: Site, wire: Wire) -> Site:
    """Return a call one line above another, in an `if` that only the minority goes into."""
    own = replace(site.stack[0], line=site.stack[0].line - 1)
    return Site(site.group, wire, (own, *site.stack[1:]))


def _loops(nodes: Iterable[Node]) -> list[Loop]:
    return [item for node in nodes if isinstance(node, Loop) for item in (node, *_loops(node.body))]


class Memory(Struct, frozen=True):
    """One rank's dump, in memory."""

    dump: Dump
    file: str = ""
    rank: int | None = 0

    def load(self) -> list[Dump]:
        return [self.dump]


@cache
def _described(wire: Wire) -> Described:
    return Described(wire, f"{wire.op} {wire.amounts}")


@cache
def key(group: int) -> GroupKey:
    return GroupKey("nccl", str(group), "default_pg" if group == 0 else f"group_{group}")


def histories(case: Case) -> dict[int, dict[GroupKey, list[Call]]]:
    """Return what every rank recorded, by group."""
    recorded: dict[int, dict[GroupKey, list[Call]]] = {}
    for rank in range(case.world):
        calls = case.edited if rank in case.minority else case.common
        groups: dict[GroupKey, list[Call]] = {}
        for at, site in enumerate(site for site in calls if rank in case.members[site.group]):
            group = key(site.group)
            own = groups.setdefault(group, [])
            own.append(Call(group, len(own) + 1, site.described, True, 1e9 + at, stack=site.stack))
        recorded[rank] = groups
    if case.blocked:
        _block(case, recorded)
    return recorded


def _block(case: Case, recorded: dict[int, dict[GroupKey, list[Call]]]) -> None:
    """Cut every rank off behind its first call that does not fit."""
    original, edited = (recorded[rank] for rank in (_peer(case), case.minority[0]))
    firsts = []
    for name in sorted(original.keys() & edited.keys()):
        pairs = zip(original[name], edited[name], strict=False)
        differs = next((first.seq for first, other in pairs if differing_parts(first.wire, other.wire)), None)
        if differs is not None:
            other = edited[name][differs - 1]
            firsts.append((other.created_s or 0.0, name, differs))
    if not firsts:
        return
    _, name, position = min(firsts)
    for groups in recorded.values():
        if name in groups:
            ends = [call.created_s for call in groups[name] if call.seq == position]
            end = ends[0] if ends else None
        else:
            end = None
        for group, calls in groups.items():
            groups[group] = [call for call in calls if end is None or (call.created_s or 0.0) <= end]


def _peer(case: Case) -> int:
    """A rank of the majority that is in every group, if there is one."""
    others = [rank for rank in range(case.world) if rank not in case.minority]
    return max(others, key=lambda rank: sum(rank in ranks for ranks in case.members))


def diverge(case: Case) -> tuple[list[Divergence], dict[int, dict[GroupKey, list[Call]]]]:
    """Return the divergences found in the recorded histories, and these."""
    recorded = histories(case)
    survey = Survey()
    survey.world_size = case.world
    members = {key(number): ranks for number, ranks in enumerate(case.members)}
    for rank, groups in recorded.items():
        calls = sorted((call for own in groups.values() for call in own), key=lambda call: call.created_s or 0.0)
        dump = Dump(rank, f"rank_{rank}", "nccl", calls, members=members, world_size=case.world)
        survey.take(digest(rank, [Memory(dump, dump.file, rank)], None))
    survey.close()
    divergences = find(survey, lambda rank, group: recorded[rank].get(group, []), lambda ranks: set(range(case.world)))
    return divergences, recorded


def judge(case: Case) -> str:
    """Return `right`, `equal` (another edit that explains every recorded call as well), or what is wrong."""
    result, recorded = diverge(case)
    visible = _visible(case, recorded)
    if not visible:
        return "nothing to see" if not result else "a divergence where all calls fit"
    if not result:
        return "missed"
    (item,) = result
    if item.culprits != case.minority:
        return f"blames {item.culprits}"
    original, edited = (recorded[rank].get(item.key, []) for rank in (item.majority_rank, item.minority_rank))
    if item.position not in visible.get(item.key, ()):
        return f"position {item.position} is not in {visible}"
    if case.blocked:
        whole = [call for call in case.common if item.majority_rank in case.members[call.group]]
        future = [call.token for call in whole if key(call.group) == item.key][item.position :]
        fits = _fits_blocked(item, [at_line(call) for call in original[: item.position - 1]], future)
    else:
        fits = _fits_whole(item, original, edited)
    if not fits:
        return f"{item.kind} does not explain the calls"
    past = [at_line(call) for call in edited[: item.position - 1]]
    kinds = (item.kind, *item.explanation.alternatives)
    for kind in kinds:
        if kind != _EXPECTED[case.planted] and not _alike(case, kind, item, past):
            return f"{kind} is told from the planted edit by the record"
    return "right" if _EXPECTED[case.planted] in kinds else "equal"


_EXPECTED: dict[Planted, Kind] = {
    "insert": "added",
    "drop": "left_out",
    "swap": "other_operation",
    "change": "other_arguments",
    "substitute": "other_operation",
    "stop early": "fewer_iterations",
    "run on": "more_iterations",
}
Condition = Callable[[Divergence, Sequence[object]], bool]
"""Whether a record shows no more than both readings share; given what both sides called before, oldest first."""


def _in_loop(divergence: Divergence, past: Sequence[object]) -> bool:
    """The peers' call was made before, so they may be in another round of a loop."""
    return at_line(divergence.majority) in past


def _again(divergence: Divergence, past: Sequence[object]) -> bool:
    """The minority's call was made before, so it may be the next of its loop, or of an outer one."""
    return at_line(divergence.minority) in past


def _unusual(divergence: Divergence, past: Sequence[object]) -> bool:
    """The loop that the peers are in did not make the minority's call in its last round: in a branch, or behind it."""
    expected = at_line(divergence.majority)
    return expected in past and at_line(divergence.minority) not in past[len(past) - 1 - past[::-1].index(expected) :]


def _both_new(divergence: Divergence, past: Sequence[object]) -> bool:
    """Neither the peers' call nor its operation was seen at the minority: two branches, or one after the other."""
    return at_line(divergence.majority) not in past and divergence.majority.wire.op != divergence.minority.wire.op


def _other_op(divergence: Divergence, past: Sequence[object]) -> bool:
    """A call that no rank made before, of another operation: beside the peers' call or instead of it."""
    return at_line(divergence.minority) not in past and divergence.majority.wire.op != divergence.minority.wire.op


def _same_op(divergence: Divergence, past: Sequence[object]) -> bool:
    """A call of the same operation from another line: beside the peers' call or instead of it."""
    return divergence.majority.wire.op == divergence.minority.wire.op


def _always(divergence: Divergence, past: Sequence[object]) -> bool:
    return True


_ALIKE_AT_THE_CUT: dict[tuple[Planted, Kind], Condition] = {
    # Whether the peers' call comes after the unusual one is not recorded.
    ("insert", "other_operation"): _other_op,
    ("insert", "other_arguments"): _same_op,
    ("substitute", "added"): _unusual,
    # A call that the loop does not make in every round is in a branch of the loop, or after it.
    ("insert", "fewer_iterations"): _unusual,
    ("drop", "added"): _unusual,
    ("swap", "added"): _unusual,
    ("stop early", "added"): _unusual,
    ("run on", "left_out"): _again,
    # The calls up to the minority's are the rest of a round, or whole rounds of an inner loop.
    ("drop", "fewer_iterations"): _in_loop,
    ("swap", "fewer_iterations"): _in_loop,
    ("stop early", "left_out"): _in_loop,
    # One loop's calls lead to both: less of the loop that the peers are in, or more of the one that ended before.
    ("drop", "more_iterations"): _again,
    ("stop early", "more_iterations"): _again,
    ("swap", "more_iterations"): _again,
    ("run on", "fewer_iterations"): _in_loop,
    # The call that was made too early is the next one without those left out; what is made too late is not recorded.
    ("swap", "left_out"): _always,
    # The lines of a function that a rank was never seen to pass one after the other may be its branches.
    ("drop", "other_operation"): _both_new,
    ("run on", "other_operation"): _both_new,
}
"""What cannot be told apart if the record ends at the calls that differ, or no single edit aligns the later ones."""
_ALIKE_IN_FULL: dict[tuple[Planted, Kind], Condition] = {
    # Equal calls one after the other are rounds of a loop or statements; an inner loop's rounds are calls of the outer.
    ("drop", "fewer_iterations"): _in_loop,
    ("stop early", "left_out"): _in_loop,
}
"""What cannot be told apart if the later calls align."""


def _alike(case: Case, kind: Kind, divergence: Divergence, past: Sequence[object]) -> bool:
    """Whether the record cannot tell a kind from the planted edit."""
    cut = case.blocked or not divergence.explanation.aligned
    condition = (_ALIKE_AT_THE_CUT if cut else _ALIKE_IN_FULL).get((case.planted, kind))
    return condition is not None and condition(divergence, past)


def _visible(case: Case, recorded: dict[int, dict[GroupKey, list[Call]]]) -> dict[GroupKey, set[int]]:
    """Return for each group the positions at which the edit shows: the first other call, and the first other line."""
    seqs = {}
    for number, ranks in enumerate(case.members):
        peers = [rank for rank in ranks if rank not in case.minority]
        original, edited = (recorded[rank].get(key(number), []) for rank in (peers[0], case.minority[0]))
        pairs = list(zip(original, edited, strict=False))
        differs = next((first.seq for first, other in pairs if differing_parts(first.wire, other.wire)), None)
        if differs is not None:
            lines = [first.seq for first, other in pairs if at_line(first) != at_line(other)]
            seqs[key(number)] = {seq for seq in lines if seq <= differs}
    return seqs


def _fits_whole(divergence: Divergence, common: list[Call], edited: list[Call]) -> bool:
    """Whether the edit that was found makes one history of the other, to the end of the shorter one."""
    explanation = divergence.explanation
    ours, theirs = ([at_line(call) for call in calls[divergence.position - 1 :]] for calls in (common, edited))
    count = len(explanation.calls)
    if not explanation.aligned:
        return True  # No single edit explains all later calls: several groups or rounds are mixed.
    if explanation.deviation == "drop":
        ours = ours[count:]
    elif explanation.deviation == "insert":
        theirs = theirs[count:]
    else:
        skipped = 2 if explanation.deviation == "swap" else 1
        ours, theirs = ours[skipped:], theirs[skipped:]
    size = min(len(ours), len(theirs))
    return ours[:size] == theirs[:size]


def _fits_blocked(divergence: Divergence, past: list[object], future: list[object]) -> bool:
    """Whether what was found can come before what the minority stands in, given what the majority calls later."""
    got = at_line(divergence.minority)
    calls = [at_line(call) for call in divergence.explanation.calls]
    if divergence.explanation.terms[0].name == "any call":
        return True  # Nothing tells whether the call is in a branch of the loop or behind it.
    if divergence.kind == "left_out":
        way = [*calls, got]
        shown = [*past, at_line(divergence.majority), *future]
        # A call that was never made before shows nothing of what comes before it.
        return any(shown[at : at + len(way)] == way for at in range(len(shown))) or not {
            got,
            at_line(divergence.majority),
        } <= set(past)
    if divergence.kind == "fewer_iterations" and divergence.explanation.place == "after":
        return got in future or not {got, at_line(divergence.majority)} <= set(past)
    return True
