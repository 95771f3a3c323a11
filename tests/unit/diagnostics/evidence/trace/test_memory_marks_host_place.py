import json

import torch
from torch.profiler import ProfilerActivity, profile

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.stacks.dumps import is_users
from diagnostics.evidence.trace.memory_marks import stacks_at

BYTES = 4 << 20


def hold() -> torch.Tensor:
    """Allocates from within torch's own Python."""
    return torch.nn.functional.gelu(torch.nn.functional.dropout(torch.ones(BYTES // 4), 0.5))


def test_the_function_of_the_user_is_found_beneath_torchs_own(tmp_path) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as profiler:
        hold()
    path = tmp_path / "rank_0.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    result = [event for event in events if event.get("name") == "[memory]" and event["args"]["Bytes"] == BYTES]
    assert len(result) >= 2
    stacks = stacks_at(path, Limits(), [(item["ts"], item["tid"]) for item in result])
    heads = {next(frame for frame in stack if is_users(frame)).function for stack in stacks}
    assert heads == {"hold"}
    assert any(frame.file.startswith("torch/") for stack in stacks for frame in stack)
    line = hold.__code__.co_firstlineno
    assert {frame.line for stack in stacks for frame in stack if frame.function == "hold"} == {line}
    outside = stacks_at(
        path, Limits(), [(result[0]["ts"], result[0]["tid"] + 1), (result[0]["ts"] + 1e9, result[0]["tid"])]
    )
    assert outside == [[], []]
