"""Faults of collectives: alone, a rank has nobody to disagree with and continues."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.unit.faults.conftest import Faulty


@pytest.mark.parametrize("name", ["extra_collective", "other_dtype", "group_order"])
def test_alone_what_needs_others_goes_on(faulty: Faulty, name: str) -> None:
    assert faulty(name).run()


@pytest.mark.parametrize(
    ("name", "rank", "calls"),
    [
        ("other_operation", 0, ["broadcast"]),
        ("other_operation", 1, ["all_reduce"]),
        ("other_shape", 0, [("all_reduce", 512)]),
        ("other_shape", 1, [("all_reduce", 1024)]),
    ],
)
def test_the_faulty_rank_calls_what_the_others_do_not(
    faulty: Faulty, name: str, rank: int, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def record(operation: str) -> Any:
        real = getattr(dist, operation)

        def call(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            if tensor.numel() in (512, 1024):
                seen.append((operation, tensor.numel()) if isinstance(calls[0], tuple) else operation)
                return None
            return real(tensor, *arguments, **named)

        return call

    for operation in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, operation, record(operation))
    assert faulty(name, rank=rank).run() and seen == calls
