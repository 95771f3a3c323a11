"""The user's frames of a call: innermost first, without plumbing, up to where the rank's own code begins."""

import sys
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtk.preflight import issuing as frames
from tests.unit.preflight.one_rank import issued, recorded


def here() -> FrameType:
    return sys._getframe(1)


def functions(text: str) -> list[str]:
    return [site.partition("\t")[2] for site in text.splitlines()]


def inner() -> str:
    return frames.stack_of(here())


def outer() -> str:
    return inner()


def test_frames_are_told_from_the_innermost_on() -> None:
    sites = frames.stack_of(here()).splitlines()
    assert sites[0].startswith(f"{__file__}:") and functions(outer())[:3] == ["inner", "outer", functions(sites[0])[0]]


def test_the_stack_ends_at_what_called_the_ranks_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "outermost", outer.__code__)
    assert functions(outer()) == ["inner"]


def test_torch_is_left_out_but_for_backward() -> None:
    seen: list[str] = []
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_hook(lambda gradient: seen.append(frames.stack_of(here())))
    weight.sum().backward()
    names = functions(seen[0])
    assert "Tensor.backward" in names and "backward" in names
    assert not any("_engine" in name for name in names)


def test_a_call_inside_an_object_collective_is_its_part() -> None:
    assert frames.user_call(here()) == ""
    with recorded(0, 2) as simulated:
        dist.all_reduce(torch.ones(1))
        dist.all_gather_object([None, None], "x")
        names = [entry.user_op for entry in issued(simulated)]
    assert names[0] == "" and set(names[1:]) == {"all_gather_object"}
    assert c10d.__file__.startswith(torch.__path__[0])
