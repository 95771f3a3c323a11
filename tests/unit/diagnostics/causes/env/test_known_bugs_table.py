"""The table of known faults: each row is met by its own version, and what goes round a fault takes it off the list."""

import re

import pytest

from diagnostics.causes.env.known_bug import KnownBug, bug_in, known_bugs, possible


@pytest.mark.parametrize("bug", known_bugs(), ids=lambda bug: f"{bug.component} {bug.source}")
def test_a_row_is_met_by_its_versions(bug: KnownBug) -> None:
    assert bug.what and bug.fix and bug.source
    inside = bug.since or tuple(max(0, part - 1) for part in bug.before)
    name, value = bug.variable
    met = list(possible({bug.component: inside}, {name: value} if value else {}, bug.arch))
    assert (bug in met) != bool(bug.text)
    if bug.before:
        assert bug not in list(possible({bug.component: bug.before}, {name: value}, bug.arch))
    if value:
        assert bug not in list(possible({bug.component: inside}, {}, bug.arch))
    if bug.arch:
        assert bug not in list(possible({bug.component: inside}, {}, "x86_64"))


def test_every_row_is_different_and_its_pattern_compiles() -> None:
    bugs = known_bugs()
    assert len(set(bugs)) == len(bugs) > 20
    for bug in bugs:
        re.compile(bug.text)
        assert bug.component in ("nccl", "torch", "driver", "kernel")
        assert bug.shows in ("hang", "crash", "memory", "wrong")
        assert all(isinstance(part, int) for part in (*bug.since, *bug.before))


@pytest.mark.parametrize(
    ("component", "version", "name", "value"),
    [("driver", (560, 35), "NCCL_P2P_DISABLE", "1"), ("nccl", (2, 19, 3), "NCCL_CUMEM_ENABLE", "0")],
)
def test_what_goes_round_a_fault_takes_it_and_no_other_off_the_list(
    component: str, version: tuple[int, ...], name: str, value: str
) -> None:
    every = list(possible({component: version}, {}, ""))
    left = list(possible({component: version}, {name: value}, ""))
    gone = [bug for bug in every if bug not in left]
    assert gone and all(name in bug.fix for bug in gone)
    assert left == [bug for bug in every if bug not in gone]
    default = "0" if name.endswith("DISABLE") else "1"
    assert list(possible({component: version}, {name: default}, "")) == every, "the default written out changes nothing"


def test_a_component_without_a_version_meets_nothing() -> None:
    assert not list(possible({}, {}, "aarch64"))


def test_a_range_begins_with_the_first_version_that_has_it() -> None:
    bug = KnownBug("nccl", (2, 19), (2, 20, 3), "hang", "x", "y", "z")
    assert [bug.has(version) for version in ((2, 18, 9), (2, 19), (2, 20, 2), (2, 20, 3))] == [False, True, True, False]
    assert KnownBug("nccl", (2, 19), (), "hang", "x", "y", "z").has((99,)), "no version without it is known"


def test_a_line_that_the_fault_itself_prints() -> None:
    bug = bug_in("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401")
    assert bug is not None and "NCCL_NVLS_ENABLE=0" in bug.fix
    assert bug_in("h:1:2 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'") is bug
    assert bug_in("h:1:2 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 2 'out of memory'") is None
    assert bug_in("NCCL WARN Cuda failure 1") is None


def test_barriers_that_only_their_numbers_tell_apart() -> None:
    call = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}OpType={})"
    sides = f"{call.format(1, 1, '{}')}, but {call.format(2, 0, 'BARRIER')}"
    bug = bug_in(sides.format("BARRIER"))
    assert bug is not None and bug.source == "pytorch/pytorch#148976"
    assert bug_in(sides.format("REDUCE")) is None
