"""States in files and on the host: the same update to the last bit, few windows, no file left over."""

import os
import resource
import signal
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon

from dtk.errors import DtkError
from dtk.parallel.tiers import AHEAD, DROP, FOR_READING, FOR_WRITING, Swap, Tier, state_fields
from dtk.plan.formulas.holding import WINDOWS

CPU = torch.device("cpu")
SHAPES = [(33, 7), (5,), (64, 64), (1,), (17, 3), (0, 4)]
BUILDS = {
    "adamw": partial(AdamW, lr=0.1, fused=True),
    "foreach": partial(AdamW, lr=0.1, foreach=True),
    "amsgrad": partial(AdamW, lr=0.1, amsgrad=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "nothing": partial(SGD, lr=0.1),
}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def groups(own: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": own[::2], "weight_decay": 0.1}, {"params": own[1::2], "weight_decay": 0.0}]


def step(optimizer: torch.optim.Optimizer, own: list[nn.Parameter], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for i, p in enumerate(own):
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = None if (i + number) % 4 == 0 else gradient  # Not each has one in every step.
    optimizer.step()


def tiered(build: Any, folder: Path | None) -> tuple[Tier, torch.optim.Optimizer, list[nn.Parameter]]:
    own, tier = parameters(), Tier(CPU, None if folder is None else str(folder))
    optimizer = tier.paged(build)(groups(own))
    tier.reserve([p for group in optimizer.param_groups for p in group["params"]], build)
    return tier, optimizer, own


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("to", ["file", "host"])
def test_the_update_is_the_same_to_the_last_bit(name: str, to: str, tmp_path: Path) -> None:
    tier, paged, own = tiered(BUILDS[name], tmp_path if to == "file" else None)
    plain = parameters()
    optimizer = BUILDS[name](groups(plain))
    for number in range(5):
        paged.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
        step(paged, own, number)
        tier.settle()
        step(optimizer, plain, number)
    assert all(torch.equal(p, q) for p, q in zip(own, plain, strict=True))
    for p, q in zip(own, plain, strict=True):
        assert paged.state[p].keys() == optimizer.state[q].keys()
        assert all(torch.equal(paged.state[p][field], value) for field, value in optimizer.state[q].items())
    assert [len(group["params"]) for group in paged.param_groups] == [3, 3]


def test_few_parameters_have_states_in_memory_and_bytes_are_counted(tmp_path: Path) -> None:
    own, tier = [nn.Parameter(torch.ones(50, 50)) for _ in range(9)], Tier(CPU, str(tmp_path))
    build = BUILDS["adamw"]
    optimizer = tier.paged(build)([{"params": own}])
    tier.reserve(own, build)
    alive: list[weakref.ref[Tensor]] = []
    most = 0
    read = tier._read

    def watched(p: Tensor) -> dict[str, Tensor]:
        nonlocal most
        windows = read(p)
        alive.extend(weakref.ref(window.untyped_storage()) for window in windows.values())
        most = max(most, sum(ref() is not None for ref in alive))
        return windows

    tier._read = watched  # type: ignore[method-assign]
    for number in range(4):
        for p in own:
            p.grad = torch.ones_like(p)
        optimizer.step()
        tier.settle()
        states = 2 * 4 * 2500 * len(own)
        assert tier.figures() == {"offload_read_bytes": number * states, "offload_written_bytes": (number + 1) * states}
    assert 2 <= most <= 2 * WINDOWS


def test_a_resumed_state_is_read_into_its_place(tmp_path: Path) -> None:
    tier, paged, own = tiered(BUILDS["adamw"], tmp_path)
    plain = parameters()
    optimizer = BUILDS["adamw"](groups(plain))
    step(optimizer, plain, 1)
    for p, q in zip(own, plain, strict=True):
        p.data.copy_(q)
        if q not in optimizer.state:
            continue
        room = {field: tier.room(p, field) for field in ("exp_avg", "exp_avg_sq")}
        for field, value in room.items():
            value.copy_(optimizer.state[q][field])
        paged.state[p].update(room, step=optimizer.state[q]["step"].clone())
    for number in (2, 3):
        step(paged, own, number)
        tier.settle()
        step(optimizer, plain, number)
    assert all(torch.equal(p, q) for p, q in zip(own, plain, strict=True))


def test_fields_of_the_shape_of_the_parameter() -> None:
    assert set(state_fields(BUILDS["adamw"])) == {"exp_avg", "exp_avg_sq"}
    assert set(state_fields(BUILDS["momentum"])) == {"momentum_buffer"}
    assert state_fields(BUILDS["nothing"]) == {}
    assert set(state_fields(partial(Muon, lr=0.1))) == {"momentum_buffer"}


def test_a_file_keeps_what_is_written_while_its_pages_are_let_go_of(tmp_path: Path) -> None:
    swap = Swap(str(tmp_path), [4000, 0, 12000])
    first, none, second = (swap.take(shape, torch.float32) for shape in ((10, 100), (0, 3), (3000,)))
    values = torch.randn(10, 100)
    swap.write(values, first)
    second.fill_(7)
    for home in (first, none, second):
        swap.advise(home, DROP)
        swap.advise(home, AHEAD)
    into = torch.empty_like(values)
    swap.read(first, into)
    assert torch.equal(into, values) and torch.equal(first, values) and bool((second == 7).all())


def test_pages_that_a_disk_does_not_give_are_an_error_and_no_signal(tmp_path: Path) -> None:
    swap = Swap(str(tmp_path), [1 << 16])
    home = swap.take((1 << 14,), torch.float32)
    for purpose in (FOR_READING, FOR_WRITING):
        swap.advise(home, purpose)
    os.ftruncate(swap.file.fileno(), 0)
    for purpose in (FOR_READING, FOR_WRITING):
        with pytest.raises(DtkError, match=rf"offload_folder={tmp_path} can no longer be read or written"):
            swap.advise(home, purpose)


def test_no_file_has_a_name_also_after_a_kill(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        kept = Swap(str(tmp_path), [1 << 20])
        kept.map[0] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_take_them_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path / "none", "no such file or directory"), (tmp_path / "file", "not a directory")):
        with pytest.raises(DtkError, match=why):
            Swap(str(folder), [1])
    with pytest.raises(DtkError, match="cannot hold states: no such file"):  # The check before the ranks start.
        Swap(str(tmp_path / "none"), [])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(
            DtkError, match=rf"strategy.offload_folder={tmp_path} cannot hold states of 2 MiB: file too"
        ):
            Swap(str(tmp_path), [1 << 20, 1 << 20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("device", "why"), [("/dev/full", "no space left on device"), ("/dev/null", "truncated")])
def test_a_disk_that_fails_during_a_step_is_one_line(device: str, why: str, tmp_path: Path) -> None:
    """The error of a thread that pages reaches the update."""
    tier, paged, own = tiered(BUILDS["adamw"], tmp_path)
    for number in range(2):
        step(paged, own, number)
    tier.settle()
    assert tier.swap is not None
    with Path(device).open("r+b", buffering=0) as other:
        os.dup2(other.fileno(), tier.swap.file.fileno())
    with pytest.raises(DtkError, match=rf"offload_folder={tmp_path} can no longer be read or written: .*{why}"):
        step(paged, own, 2)
        tier.settle()
