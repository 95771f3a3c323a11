"""The table of known faults: each row is met by its own version, and what goes round a fault takes it off the list."""

import re

import pytest

from diagnostics.analysis.environment.catalogue import Version
from diagnostics.analysis.environment.known_bugs import Installed, KnownBug, bug_in, known_bugs
from diagnostics.causes.lint_texts import lint_text


def possible(
    versions: dict[str, Version], variables: dict[str, str], arch: str = "", gpus: tuple[str, ...] = ()
) -> list[KnownBug]:
    return list(Installed(versions, arch, gpus).possible(variables))


def named(bug: KnownBug) -> tuple[str, ...]:
    """Names of GPUs of which one is of the bug's kind, as NVML gives them."""
    names = ("NVIDIA GeForce RTX 5090", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA A100-SXM4-80GB")
    return names if bug.gpu else ()


@pytest.mark.parametrize("bug", known_bugs(), ids=lambda bug: f"{bug.component} {bug.source}")
def test_a_row_is_met_by_its_versions(bug: KnownBug) -> None:
    assert bug.what and bug.fix and bug.source
    inside = bug.since or tuple(max(0, part - 1) for part in bug.before)
    name, value = bug.variable
    set_so = {name: value} if value else {}
    assert (bug in possible({bug.component: inside}, set_so, bug.arch, named(bug))) != bool(bug.text)
    if bug.before:
        assert bug not in possible({bug.component: bug.before}, {name: value}, bug.arch, named(bug))
    if value:
        assert bug not in possible({bug.component: inside}, {}, bug.arch, named(bug))
    if bug.arch:
        assert bug not in possible({bug.component: inside}, {}, "x86_64")
    if bug.gpu:
        assert bug not in possible({bug.component: inside}, set_so, bug.arch), "a GPU that nothing names"
        assert bug not in possible({bug.component: inside}, set_so, bug.arch, ("NVIDIA H100 80GB HBM3",))


@pytest.mark.parametrize(
    ("variables", "version", "result"),
    [
        ({"NCCL_CUMEM_ENABLE": "0"}, (2, 26, 2), ["warning bug_met"]),
        ({"NCCL_CUMEM_ENABLE": "1"}, (2, 26, 2), []),
        ({}, (2, 26, 2), []),
        ({"NCCL_CUMEM_ENABLE": "0"}, (2, 29, 7), ["note bug_avoided"]),
        ({"NCCL_CUMEM_ENABLE": "1"}, (2, 29, 7), ["warning bug_met"]),
        ({}, (2, 29, 7), ["note bug_of_default"]),
        ({"NCCL_NVLS_ENABLE": "0"}, (2, 18, 5), ["note bug_avoided"]),
        ({"NCCL_NVLS_ENABLE": "2"}, (2, 18, 5), ["warning bug_met"]),
        ({"NCCL_CUMEM_ENABLE": "0"}, (2, 27, 3), []),
        ({"NCCL_CUMEM_ENABLE": "0"}, (), []),
    ],
)
def test_a_setting_meets_or_avoids_the_bugs_of_a_version(
    variables: dict[str, str], version: Version, result: list[str]
) -> None:
    lints = list(Installed({"nccl": version}).lints(variables))
    assert [f"{lint.severity} {lint.rule}" for lint in lints] == result
    for lint in lints:
        text = lint_text(lint)
        assert "#" in text.message and text.fix


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
    every = possible({component: version}, {})
    known_bugs = possible({component: version}, {name: value})
    bugs = [bug for bug in every if bug not in known_bugs]
    assert bugs and all(name in bug.fix for bug in bugs)
    assert known_bugs == [bug for bug in every if bug not in bugs]
    default = "0" if name.endswith("DISABLE") else "1"
    assert possible({component: version}, {name: default}) == every, "the default written out changes nothing"


def test_a_component_without_a_version_meets_nothing() -> None:
    assert not possible({}, {}, "aarch64")


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
