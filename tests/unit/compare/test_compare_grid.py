"""The table strategies x batch sizes, with out of memory marked."""

from pathlib import Path
from typing import Any

from dtk.compare.compare import compare
from dtk.compare.report import grid
from tests.unit.compare.folders import as_markdown, in_pipe, make_run


def test_strategies_by_batches_with_out_of_memory_marked(tmp_path: Path) -> None:
    runs = []
    for batch in (8, 16):
        for strategy in ("ddp", "fsdp"):
            change: dict[str, Any] = {"strategy": {"name": strategy}, "train.global_batch_size": batch}
            died = (strategy, batch) == ("ddp", 16)
            runs.append(
                make_run(
                    tmp_path,
                    f"{strategy}{batch}",
                    change=change,
                    times_s=[] if died else 0.1,
                    state="oom" if died else "finished",
                    reason="rank 0: CUDA out of memory" if died else "",
                )
            )
    runs.append(make_run(tmp_path, "zero1", change={"strategy": {"name": "zero1"}, "train.global_batch_size": 16}))
    comparison = compare(runs)
    assert comparison.fair
    rows = {row[0]: row[1:] for row in grid(comparison)}
    assert rows["step time, memory"] == ("batch 8", "batch 16")
    assert rows["ddp"] == ("100 ms, 400 MiB", "OOM")
    assert rows["fsdp"] == ("100 ms, 400 MiB", "100 ms, 400 MiB")
    assert rows["zero1"] == ("-", "100 ms, 400 MiB")
    assert any("CUDA out of memory" in note for note in comparison.notes)
    text = in_pipe(comparison)
    assert "OOM" in text
    assert "OOM" in as_markdown(comparison)
