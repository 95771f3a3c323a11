"""What one rank gathers and reduces, from flight dumps and rings: sizes, who called, how often."""

from typing import Any

import pytest

from diagnostics.analysis.memory.gathers import LEAST_UNIT, Traffic, of_calls, of_ring
from diagnostics.evidence.calls import Call
from diagnostics.evidence.ring.format import RingDump, RingGroup, RingRecord
from tests.unit.diagnostics.analysis.calls import DEFAULT, call

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"
C10D = f"{TORCH}/distributed_c10d.py"
UNIT = 4 * LEAST_UNIT


def frames(*places: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": 5} for name, file in places]


def gathered(size: int = UNIT, *places: tuple[str, str], **more: Any) -> Call:
    return call(1, None, "all_gather", size, frames=frames(*places) if places else None, **more)


def traffic(*calls: Call, world: int | None = 2) -> Traffic:
    return of_calls(calls, {DEFAULT: tuple(range(world))} if world else {}, "tr_0", world)


@pytest.mark.parametrize(
    ("places", "kind", "is_list"),
    [
        ([("all_gather", C10D), ("step", "/job/train.py")], "user", True),
        ([("all_gather_into_tensor", C10D), ("step", "/job/train.py")], "user", False),
        ([("all_gather_into_tensor", C10D), ("gather", "/venv/lib/python3.11/site-packages/lib/x.py"),
          ("step", "/job/train.py")], "library", True),
        ([("all_gather_into_tensor", C10D), ("foreach_all_gather", f"{TORCH}/fsdp/_fully_shard/x.py")], "unit", False),
        ([("all_gather_into_tensor", C10D), ("get_model_state_dict", f"{TORCH}/checkpoint/state_dict.py")],
         "state_dict", False),
        ([], "unknown", False),
    ],
)  # fmt: skip
def test_frames_tell_who_called(places: list[tuple[str, str]], kind: str, is_list: bool) -> None:
    (gather,) = traffic(gathered(UNIT, *places)).gathers
    assert (gather.kind, gather.is_list, gather.guessed) == (kind, is_list, False)
    assert gather.full_bytes == UNIT * 4 * 2 and gather.ranks == 2


def test_without_frames_a_gather_whose_size_is_reduced_as_well_is_a_units() -> None:
    result = traffic(gathered(UNIT), call(2, None, "reduce_scatter", 2 * UNIT))
    (gather,) = result.gathers
    assert gather.kind == "unit" and gather.guessed and result.scattered == {2 * UNIT * 4}
    assert [(move.what, move.unit) for move in result.moves] == [("gather", 2 * UNIT), ("reduce", 2 * UNIT)]
    small = traffic(gathered(8), call(2, None, "reduce_scatter", 16))
    assert small.gathers[0].kind == "unknown" and small.moves == [], "small sizes are equal by chance"


def test_the_size_of_a_group_that_the_dump_does_not_describe() -> None:
    calls = [gathered(UNIT), call(2, None, "reduce_scatter", 4 * UNIT)] * 3
    (item, *_) = traffic(*calls, world=None).gathers
    assert item.ranks == 4
    alike = [gathered(UNIT), call(2, None, "all_reduce", UNIT)] * 3
    assert of_calls(alike, {}, "tr_0", 8).gathers[0].ranks == 8, "a reduction as large as a part shows no group"


@pytest.mark.parametrize(
    ("names", "phase", "ahead"),
    [
        (["unshard"], "forward", False),
        (["unshard", "_pre_backward"], "backward", False),
        (["_prefetch_unshard", "_pre_backward"], "backward", True),
    ],
)
def test_the_phase_of_a_units_gather(names: list[str], phase: str, ahead: bool) -> None:
    places = [(name, f"{TORCH}/fsdp/_fully_shard/x.py") for name in names]
    (move,) = traffic(gathered(UNIT, *places)).moves
    assert (move.what, move.phase, move.ahead, move.full_bytes) == ("gather", phase, ahead, UNIT * 8)


def test_units_that_are_gathered_no_more_often_than_reduced_are_kept() -> None:
    two = [gathered(UNIT), gathered(2 * UNIT)]
    reduced = [call(3, None, "reduce_scatter", size) for size in (4 * UNIT, 2 * UNIT)]
    assert traffic(*two, *reduced).kept_bytes() == (UNIT + 2 * UNIT) * 8
    assert traffic(*two, *two, *reduced).kept_bytes() == 0, "gathered again in backward"
    assert Traffic().kept_bytes() == 0


GROUP = RingGroup("0", "default_pg", (0, 1), "key", 0, 1, 1)


def record(op: str, numel: int = UNIT, file: str = "/job/train.py", **more: Any) -> RingRecord:
    facts: dict[str, Any] = dict.fromkeys(RingRecord.__struct_fields__, "") | {
        "id": 1,
        "group": GROUP,
        "seq": 1,
        "is_p2p": False,
        "op": op,
        "dtype": "torch.float32",
        "numel": numel,
    }
    return RingRecord(**{**facts, "file": file, "line": 7, "function": "step", "region": "forward", "step": 3, **more})


def ring(*records: RingRecord) -> Traffic:
    return of_ring(RingDump(0, 2, 0, 1, "node", (GROUP,), records, True, 0), "rank_0.ring")


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (record("all_gather"), "user"),
        (record("all_gather_into_tensor", file=C10D), "library"),
        (record("all_gather_into_tensor", file=""), "library"),
        (record("all_gather", 100, user_op="all_gather_object"), "object"),
        (record("gather"), "user"),
    ],
)
def test_a_ring_tells_line_step_and_region(item: RingRecord, kind: str) -> None:
    (gather,) = ring(item).gathers
    assert (gather.kind, gather.step, gather.region, gather.evidence) == (kind, 3, "forward", "ring")
    assert gather.full_bytes == item.numel * 4 * 2 and (gather.site is None) == (item.file == "")


def test_a_gather_whose_size_is_reduced_and_scattered_too_is_a_units() -> None:
    traffic = ring(record("all_gather_into_tensor"), record("reduce_scatter_tensor", 2 * UNIT))
    assert [(gather.kind, gather.guessed) for gather in traffic.gathers] == [("unit", True)]
    assert len(traffic.moves) == 2 and traffic.whole.least_bytes == 2 * UNIT * 4
    listed = ring(record("all_gather"), record("reduce_scatter_tensor", 2 * UNIT))
    assert listed.gathers[0].kind == "user", "a list of tensors is the user's"


def test_calls_without_a_size_and_reductions_alone_are_no_gathers() -> None:
    assert ring(record("all_gather", 0), record("all_reduce"), record("all_gather", dtype="unknown")).gathers == []
