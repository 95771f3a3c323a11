import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import by_step, ddp
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of


def on_gloo(folder: Path, ranks: int) -> None:
    """Steps of 10 ms of compute and of an all_reduce of 38 ms beside it, on the threads of a CPU."""
    for rank in range(ranks):
        events: list[dict[str, Any]] = []
        for step in range(4):
            for cat, name, tid, start, length, args in (
                ("user_annotation", f"ProfilerStep#{step}", 1, 0, 40_000, {}),
                ("cpu_op", "aten::mm", 1, 0, 10_000, {}),
                ("user_annotation", "gloo:all_reduce", 2, 1_000, 38_000, {"Input Dims": [[1 << 20]]}),
            ):
                where = {"ph": "X", "pid": 500 + rank, "tid": tid, "ts": 1e6 + step * 40_000 + start, "dur": length}
                events.append({"cat": cat, "name": name, **where, "args": args})
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        (folder / f"rank_{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))


@pytest.mark.parametrize(("cores", "expected"), [(2, "undecided"), (4, "confirmed"), (None, "confirmed")])
def test_ranks_that_share_a_core_are_not_said_to_be_bound_by_communication(
    tmp_path: Path, detect: Any, cores: int | None, expected: str
) -> None:
    on_gloo(tmp_path, 4)
    manifest = {"topology": {"nproc": 4}, "hardware": {"cores": cores}}
    evidence = replace(dtk_run({"strategy": {"name": "ddp"}}), manifest=manifest)
    result = {finding.cause: finding for finding in detect(tmp_path, run=evidence).findings}[
        "overlap.communication_bound"
    ]
    assert result.status == expected, text_of(result).summary
    assert ("4 ranks share 2 cores" in text_of(result).summary) == (cores == 2)


def decided(detect: Any, folder: Path) -> tuple[str, str]:
    finding = finding_of(detect(folder), "overlap.communication_bound")
    return finding.status, text_of(finding).summary


def test_more_transfer_than_compute_in_a_step_that_is_mostly_idle_is_not_the_bound(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()
    write(ddp(sim, buckets=8, transfer=30_000.0, per_step=lambda: sim.host(60_000.0)), tmp_path)
    verdict, why = decided(detect, tmp_path)
    assert verdict == "ruled_out" and "of the step" in why


def test_many_tiny_collectives_are_not_bound_by_their_bytes(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()

    def step() -> None:
        for _ in range(200):
            sim.kernel(50.0)
            sim.wait(sim.collective("all_reduce", 4096, 150.0))

    write(by_step(sim, step), tmp_path)
    verdict, why = decided(detect, tmp_path)
    assert verdict == "undecided" and "200 all_reduce of 4 KiB" in why and "If they reduce gradients" in why


def test_sends_and_receives_hold_waiting_that_nobody_can_split(tmp_path: Path, detect: Any) -> None:
    """A pipeline's stages wait in recv for each other: that is a bubble, and no transfer."""
    sim = Simulator()

    def step() -> None:
        sim.kernel(4_000.0)
        for _ in range(4):
            sim.wait(sim.collective("recv", 64 << 20, 4_000.0))
        sim.wait(sim.collective("all_reduce", 1 << 20, 100.0))

    write(by_step(sim, step), tmp_path)
    verdict, why = decided(detect, tmp_path)
    assert verdict == "undecided" and "send and recv" in why


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("buckets", "size_bytes", "shown"),
    [(120, 12 << 20, "360 all_reduce of 102 KiB"), (8, 800 << 20, "24 all_reduce of 100 MiB")],
)
def test_the_sizes_of_what_is_exposed_are_said_and_many_small_ones_are_not_bound_by_bytes(
    tmp_path: Path, detect: Any, ranks: int, buckets: int, size_bytes: int, shown: str
) -> None:
    """The trace holds no event of a host, so the kernels' own arguments are all that is known of the collectives."""
    sim = ddp(Simulator(ranks=2), buckets=buckets, size=size_bytes, transfer=60_000.0)
    for events in sim.events:
        events[:] = [event for event in events if "stream" in event["args"]]
    files = write(sim, tmp_path)
    finding = finding_of(detect(*files[:ranks]), "overlap.communication_bound")
    text, many = text_of(finding), buckets == 120
    assert shown in text.summary and ("bucket_cap_mb" in text.summary) == many
    assert finding.status == ("undecided" if many or ranks == 1 else "confirmed")
    assert ("backward" in text.missing) == many


def test_where_backward_is_seen_the_buckets_are_judged_themselves(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(ranks=2), buckets=120, size=12 << 20, transfer=60_000.0), tmp_path)
    detection = detect(tmp_path)
    assert finding_of(detection, "overlap.small_buckets").status == "confirmed"
    assert finding_of(detection, "overlap.communication_bound").status == "ruled_out"
