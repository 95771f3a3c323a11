"""Real dumps whose truth is known: 18 gloo scenarios and two NCCL jobs under fault injection."""

import pytest

from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.model import Evidence, rank_in_name
from diagnostics.evidence.readers.flight import FlightFile, recognise
from tests.shared_data import shared_data
from tests.unit.diagnostics.hang.dumps import Shown, detect

TRUTH = {
    "gloo/missing": ("conditional_collective", (2,), (9, 8)),
    "gloo/missing0": ("conditional_collective", (0,), (13, 12)),
    "gloo/type": ("collective_mismatch", (1,), (16, 17)),
    "gloo/type0": ("collective_mismatch", (0,), (21, 22)),
    "gloo/shape": ("signature_mismatch", (3,), (25, 25)),
    "gloo/dtype": ("signature_mismatch", (3,), (27, 27)),
    "gloo/order2pg": ("group_order", (0, 1), (31, 32)),
    "gloo/p2p_missing": ("host_stall", (0,), (41,)),
    "gloo/sub": ("conditional_collective", (1,), (46, 45)),
    "gloo/exc": ("host_stall", (3,), (48, 50)),
    "gloo/steps": ("uneven_iterations", (1,), (53, 52)),
    "gloo/obj": ("collective_mismatch", (2,), (56, 58)),
    "gloo/src": ("signature_mismatch", (2,), (61, 61)),
    "gloo/coal": ("conditional_collective", (1,), (72, 71)),
    "gloo/rs": ("conditional_collective", (1,), (78, 76)),
    "gloo/straggler": ("host_stall", (2,), (65, 67)),
    "gpu_error_2nd": ("device_stall", (9, 14), ()),
    "lock_gil_1st": ("host_stall", (9, 14), ()),
}
"""Cause, ranks and the lines of both sides. `exc`, `straggler`, `p2p_missing`: the dumps show that the rank is outside
any recorded collective, not why."""


def findings(name: str, form: str = "pickle") -> list[Shown]:
    folder = shared_data(f"flight/{name}")
    limits = Limits()
    paths = [
        path for path in folder.iterdir() if recognise(head(path)) and (path.suffix == ".json") == (form == "json")
    ]
    return detect(
        Evidence(
            folder,
            limits,
            files={"flight": [FlightFile(path, path.name, rank_in_name(path), limits) for path in paths]},
        )
    )


@pytest.mark.parametrize("name", TRUTH)
def test_names_the_cause_the_ranks_and_both_lines(name: str) -> None:
    cause, ranks, lines = TRUTH[name]
    result = [finding for finding in findings(name) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks) for finding in result] == [(f"hang.{cause}", ranks)]
    assert tuple(place.line for place in result[0].where) == lines
    assert not set(result[0].ranks) & set(result[0].victims)
    assert result[0].evidence and result[0].remedies


@pytest.mark.parametrize(
    "name", ["gloo/type", "gloo/shape", "gloo/dtype", "gloo/sub", "gloo/exc", "gloo/order2pg", "gloo/rs", "gloo/obj"]
)
def test_the_json_form_without_stacks_blames_the_same_ranks(name: str) -> None:
    result = [finding for finding in findings(name, "json") if finding.status == "confirmed"]
    expected = (0, 1) if name in {"gloo/sub", "gloo/order2pg"} else TRUTH[name][1]
    assert [finding.ranks for finding in result] == [expected]


@pytest.mark.parametrize("name", ["gloo/op", "gloo/p2p"])
def test_what_the_dumps_do_not_show_is_not_guessed(name: str) -> None:
    result = findings(name)
    assert not [finding for finding in result if finding.status == "confirmed"]
    if name == "gloo/p2p":
        sentence = next(finding for finding in result if finding.cause == "hang.p2p_cycle")
        assert sentence.status == "undecided" and "send and recv" in sentence.summary and sentence.missing


def test_a_stall_says_which_other_ends_are_still_open() -> None:
    by_cause = {finding.cause: finding.status for finding in findings("gloo/exc")}
    assert by_cause["hang.rank_raised"] == by_cause["hang.straggler"] == by_cause["hang.p2p_cycle"] == "undecided"
    assert by_cause["hang.group_order"] == "ruled_out"


def test_object_collectives_are_shown_as_the_user_called_them() -> None:
    result = next(finding for finding in findings("gloo/obj") if finding.status == "confirmed")
    assert "broadcast_object_list" in result.summary and "all_gather_object" in result.summary


def left_of(name: str, without: int) -> list[Shown]:
    """The verdict without one rank's dump."""
    folder = shared_data(f"flight/{name}")
    limits = Limits()
    files = [FlightFile(path, path.name, rank_in_name(path), limits) for path in folder.iterdir() if not path.suffix]
    files = [file for file in files if file.rank != without]
    return [
        finding
        for finding in detect(Evidence(folder, limits, files={"flight": files}))
        if finding.status == "confirmed"
    ]


@pytest.mark.parametrize(
    ("name", "without", "cause", "ranks"),
    [
        ("gloo/order2pg", 2, "group_order", (0, 1)),
        ("gloo/order2pg", 3, "group_order", (0, 1)),
        ("gloo/sub", 2, "conditional_collective", (1,)),
        ("gloo/sub", 3, "conditional_collective", (1,)),
        ("gpu_error_2nd", 9, "device_stall", (14,)),
        ("gpu_error_2nd", 14, "device_stall", (9,)),
    ],
)
def test_a_lost_dump_of_a_bystander_does_not_hide_what_the_others_show(
    name: str, without: int, cause: str, ranks: tuple[int, ...]
) -> None:
    (finding,) = left_of(name, without)
    assert (finding.cause, finding.ranks) == (f"hang.{cause}", ranks)
    if name.startswith("gloo"):
        assert (
            finding.confidence <= 0.65
            and f"Rank {without} left no dump; the conclusion assumes that" in finding.summary
        )


@pytest.mark.parametrize(("name", "without"), [("gloo/order2pg", 0), ("gloo/order2pg", 1), ("gloo/sub", 1)])
def test_the_lost_dump_of_a_rank_that_took_part_leaves_it_open(name: str, without: int) -> None:
    assert left_of(name, without) == []
