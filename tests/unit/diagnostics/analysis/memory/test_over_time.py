"""Memory over time: what it is for at each moment, against the truth of a real training; totals stay totals."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.memory import history as memory_history, levels as memory_levels
from diagnostics.evidence.memory.history import BACKWARD, REDUCED, owner
from diagnostics.evidence.memory.levels import AT, KINDS, Stack, total
from diagnostics.evidence.readers.snapshot import SnapshotFile
from tests.unit.diagnostics.analysis.memory.allocator import CLOCK_US, Allocator
from tests.unit.diagnostics.causes.memory.jobs import measures
from tests.unit.diagnostics.evidence.readers.test_timeline import rank_file

MIB = 1 << 20
STEPS = 3
SCHEMA = json.loads((Path(__file__).resolve().parents[5] / "docs" / "report.schema.json").read_text())


def stored(tensors: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.fixture(scope="module")
def trained() -> tuple[Allocator, list[tuple[float, dict[str, int]]]]:
    """A training, and what was alive for what as each backward pass and each step of the optimizer ended."""
    kept = Allocator()
    truth = []

    def note(**more: int) -> None:
        states = [s for item in optimizer.state.values() for s in item.values() if s.numel() > 1]
        sizes = {"parameters": stored(model.parameters()), "optimizer states": stored(states), **more}
        truth.append(((kept.events[-1]["time_us"] - CLOCK_US) / 1e6, sizes))

    with kept:
        layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(STEPS):
            kept.annotate(f"ProfilerStep#{step}", begins=True)
            loss = model(torch.randn(512, 64)).square().mean()
            kept.annotate("backward", begins=True)
            loss.backward()
            kept.annotate("backward", begins=False)
            del loss
            note(gradients=stored(p.grad for p in model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
            note(gradients=0)
            kept.annotate(f"ProfilerStep#{step}", begins=False)
        kept.owners = (model, optimizer)
    return kept, truth


def load(folder: Path, value: dict[str, Any]) -> Any:
    path = folder / "snapshot_rank0.pickle"
    path.write_bytes(pickle.dumps(value))
    return SnapshotFile(path, path.name, 0, Limits()).load().devices[0]


def level(rows: list[memory_levels.Row], time_s: float) -> dict[str, int]:
    row = [item for item in rows if item[0] <= time_s + 1e-9][-1]
    return dict(zip(KINDS, row[1], strict=True))


def test_the_history_of_a_training_is_told_by_what_it_is_for(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_levels, "MAX_ROWS", 1_000_000)
    kept, truth = trained
    history = load(tmp_path, kept.snapshot()).history
    assert len(truth) == 2 * STEPS
    for time_s, sizes in truth:
        result = level(history.rows, time_s)
        assert {name: result[name] for name in sizes} == sizes
    row = dict(zip(KINDS, history.peak[1], strict=True))
    assert row["activations"] > 0.5 * total(history.peak)
    assert row["not attributed"] <= 512 * 64 * 4 + 4096  # the batch, which the training's own code allocates
    assert history.peak_step in range(STEPS)
    assert history.peak_region == "backward"


def test_totals_and_what_is_reserved_are_those_of_the_allocator(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_levels, "MAX_ROWS", 1_000_000)
    kept, _ = trained
    device = load(tmp_path, kept.snapshot())
    allocated = most = reserved = 0
    at_peak = 0
    for event in kept.events:
        allocated += {"alloc": 1, "free_requested": -1}.get(event["action"], 0) * event["size"]
        reserved += event["size"] if event["action"] == "segment_alloc" else 0
        if allocated > most:
            most, at_peak = allocated, reserved
    assert (device.peak_bytes, total(device.history.peak)) == (most, most)
    assert device.history.peak[1][-1] == at_peak - most
    last = device.history.rows[-1]
    assert (total(last), last[1][-1]) == (kept.allocated, kept.reserved - kept.allocated)
    assert device.peak_site is not None
    assert Path(device.peak_site.file).name == "test_over_time.py"


@pytest.mark.parametrize("last", [40, 150, 400])
def test_a_ring_that_is_full_keeps_totals_and_gives_what_it_lost_to_nobody(trained, tmp_path, monkeypatch, last):
    monkeypatch.setattr(memory_levels, "MAX_ROWS", 1_000_000)
    kept, _ = trained
    whole = load(tmp_path, kept.snapshot()).history
    part = load(tmp_path, kept.snapshot(last)).history
    start_s = (kept.events[-last]["time_us"] - kept.events[0]["time_us"]) / 1e6
    settled = dict(part.rows)  # the last of each moment
    assert len(settled) > last // 3
    for time_s, sizes in settled.items():
        then = level(whole.rows, time_s + start_s)
        assert sum(sizes[:-1]) == sum(list(then.values())[:-1])
        assert sizes[-1] == then["reserved, in no tensor"]
        assert sizes[AT["parameters"]] == then["parameters"]  # by the blocks that are left
        assert sizes[AT["activations"]] <= then["activations"]


def test_few_rows_keep_the_peak_and_the_valleys(trained, tmp_path):
    kept, _ = trained
    few = load(tmp_path, kept.snapshot()).history
    assert 20 < len(few.rows) <= memory_levels.MAX_ROWS
    assert few.rows == sorted(few.rows, key=lambda row: row[0])
    generator = random.Random(7)
    stack = Stack(0.0, 1e6, [100] * len(KINDS))
    seen, sizes = [], 100
    for n in range(50_000):
        sizes += generator.randint(-sizes, 300) if n != 31_234 else 10**6
        stack.move(float(n * 20), ((0, sizes - stack.levels[0]),))
        seen.append(sizes)
    rows = stack.finish()
    assert len(rows) <= memory_levels.MAX_ROWS
    assert max(row[1][0] for row in rows) == max(seen)
    assert min(row[1][0] for row in rows) == min(seen)
    assert (rows[0][0], rows[-1][0], rows[-1][1][0]) == (0.0, 1e6, seen[-1])


def test_a_quiet_time_is_flat(tmp_path):
    stack = Stack(0.0, 100.0, [0] * len(KINDS))
    for time, change in ((10.0, 50), (12.0, 30), (90.0, -70)):
        stack.move(time, ((0, change),))
    rows = [(time, sizes[0]) for time, sizes in stack.finish()]
    assert rows == [(0.0, 0), (10.0, 0), (10.0, 50), (12.0, 50), (12.0, 80), (90.0, 80), (90.0, 10), (100.0, 10)]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("zeros_like", "/x/torch/_refs.py"), ("_init_group", "/x/torch/optim/adam.py")], "optimizer states"),
        ([("_multi_tensor_adam", "/x/torch/optim/adam.py"), ("step", "/u/train.py")], "temporaries"),
        ([("foreach_all_gather", "/x/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"),
          ("_call_impl", "/x/torch/nn/modules/module.py")], "communication buffers"),
        ([("foreach_reduce", "/x/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py")], REDUCED),
        ([("gelu", "/u/model.py"), ("_call_impl", "C:\\x\\torch\\nn\\modules\\module.py"),
          ("forward", "/x/torch/distributed/fsdp/fully_sharded_data_parallel.py")], "activations"),
        ([("torch::autograd::Engine::evaluate_function(...)", "??")], BACKWARD),
        ([("_call_impl", "/x/torch/nn/modules/module.py"), ("torch::autograd::Engine::execute(...)", "??")],
         "activations"),
        ([("convert", "/x/torch/nn/modules/module.py"), ("main", "/u/train.py")], "parameters"),
        ([("forward", "/u/optim/torch_model.py"), ("backward", "/u/train.py")], "not attributed"),
        ([], "not attributed"),
    ],
)  # fmt: skip
def test_torchs_own_frames_tell_what_a_block_is_for(frames, expected):
    assert owner({"frames": [{"name": name, "filename": file, "line": 1} for name, file in frames]}) == expected


def test_a_stack_of_another_shape_says_nothing():
    for frames in (None, 5, "x", [None, 7, {"name": None}], {"a": 1}):
        assert owner({"frames": frames}) == "not attributed"


def test_an_out_of_memory_moment_is_kept_and_frames_of_old_torch_have_no_times():
    events = [{"action": "alloc", "addr": 1, "size": 10}, {"action": "oom", "size": 99, "device_free": 3}]
    history = memory_history.read(events, {1: (10, "not attributed")}, 30)
    assert (history.has_times, history.failed) == (False, (1.0, 99))
    assert history.peak is not None and history.peak[1][-2:] == (10, 20)


def measures_of(folder: Path) -> dict[str, Any]:
    """As they stand in report.json, which the published schema describes."""
    output: dict[str, Any] = json.loads(json.dumps(measures(folder)))
    jsonschema.validate(output, {**SCHEMA["properties"]["measures"]["properties"]["memory"], "$defs": SCHEMA["$defs"]})
    return output


def test_a_snapshot_in_the_report(trained, tmp_path):
    kept, _ = trained
    (tmp_path / "snapshot_rank3.pickle").write_bytes(pickle.dumps(kept.snapshot()))
    record = measures_of(tmp_path)["ranks"]["3"]
    stack = record["over_time"]
    assert (stack["from"], stack["of"], stack["unit"]) == ("snapshot", "tensors", "s")
    assert stack["peak"]["bytes"] == record["peak_bytes"] == max(size for _, size in record["curve"])
    assert sum(stack["peak"]["kinds"].values()) == stack["peak"]["bytes"]
    assert stack["peak"]["where"]["file"].endswith("test_over_time.py")
    assert stack["kinds"][-1] == "reserved, in no tensor"
    assert stack["peak"]["step"] is not None


def test_a_timeline_knows_totals_only(tmp_path):
    rank_file(tmp_path, [5 * MIB, 9 * MIB, 7 * MIB], [50 * MIB] * 3)
    stack = measures_of(tmp_path)["ranks"]["0"]["over_time"]
    assert stack["kinds"] == ["not attributed", "reserved, in no tensor"]
    assert stack["rows"] == [[0.0, 5 * MIB, MIB], [1.0, 9 * MIB, MIB], [2.0, 7 * MIB, MIB]]
    assert (stack["peak"]["step"], stack["peak"]["bytes"]) == (2, 9 * MIB)
    assert stack["steps"] == [[0.0, 1], [1.0, 2], [2.0, 3]]
    assert stack["notes"] == ["only_totals"]


def test_a_peak_between_the_steps_is_told_beside_the_curve(tmp_path):
    path = rank_file(tmp_path, [5 * MIB] * 3, [50 * MIB] * 3)
    lines = [json.loads(line) | {"peak_allocated_bytes": 30 * MIB} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = measures_of(tmp_path)["ranks"]["0"]
    assert record["peak_bytes"] == record["over_time"]["peak_elsewhere_bytes"] == 30 * MIB


def test_the_resident_set_is_called_what_it_is(tmp_path):
    rank_file(tmp_path, None, [50 * MIB, 60 * MIB])
    stack = measures_of(tmp_path)["ranks"]["0"]["over_time"]
    assert (stack["of"], stack["kinds"]) == ("process", ["not attributed"])
    assert stack["capacity_bytes"] is None


def telemetry(folder: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "about", "schema_version": 1, "time_s": 1.0, "host": "a", "cores": 8, "every_s": 1.0, "gpu": []}
    ]
    for n in range(9):
        gpu = [{"memory_used_bytes": n * MIB, "memory_total_bytes": 80 * MIB}] * 2
        host = {"memory_used_bytes": n, "memory_total_bytes": 9999, "rank_rss_bytes": {"0": n * MIB, "1": 2 * MIB}}
        lines.append({"kind": "sample", "time_s": 5.0 + n, "gpu": gpu, "host": host})
    (folder / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_capacity_is_that_of_the_devices(tmp_path):
    rank_file(tmp_path, [5 * MIB, 9 * MIB], [50 * MIB] * 2)
    telemetry(tmp_path)
    assert measures_of(tmp_path)["ranks"]["0"]["over_time"]["capacity_bytes"] == 80 * MIB


def test_telemetry_alone_shows_the_processes(tmp_path):
    telemetry(tmp_path)
    failure = {"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "", "timestamp": "5"}}}
    (tmp_path / "error_rank0.json").write_text(json.dumps(failure))
    ranks = measures_of(tmp_path)["ranks"]
    assert list(ranks) == ["0", "1"]
    assert "peak_bytes" not in ranks["0"]  # samples once a second are no measured peak
    stack = ranks["0"]["over_time"]
    assert (stack["from"], stack["kinds"], stack["peak"]["bytes"]) == ("telemetry", ["not attributed"], 8 * MIB)


def test_of_many_ranks_the_highest_are_told_over_time(tmp_path):
    for rank in range(40):
        high = (100 if rank == 33 else 1) * MIB
        rank_file(tmp_path, [5 * MIB, 9 * MIB + high + rank, 7 * MIB], [50 * MIB] * 3, rank)
    ranks = measures_of(tmp_path)["ranks"]
    text = [int(rank) for rank, record in ranks.items() if "over_time" in record]
    assert len(ranks) == 40
    assert text == [32, 33, 34, 35, 36, 37, 38, 39]


def waste() -> torch.Tensor:
    return torch.zeros(40, MIB // 4).add(1)  # two of 40 MiB at once: nothing else here needs as much


def test_a_trace_with_functions_names_the_one_that_was_at_work(tmp_path):
    layer = nn.Linear(64, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as profiler:
        for step in range(2):
            with record_function(f"ProfilerStep#{step}"):
                layer(torch.ones(8, 64)).sum().backward()
                if step == 1:
                    waste()
    profiler.export_chrome_trace(str(tmp_path / "trace_rank0.json"))
    peak = measures_of(tmp_path)["ranks"]["0"]["over_time"]["peak"]
    assert (peak["step"], peak["bytes"] // MIB) == (1, 80)
    assert (Path(peak["where"]["file"]).name, peak["where"]["function"]) == ("test_over_time.py", "waste")
    assert peak["where"]["line"] == waste.__code__.co_firstlineno


def test_a_damaged_snapshot_is_a_value_error_or_a_value(trained, tmp_path):
    data = pickle.dumps(trained[0].snapshot(60))
    generator = random.Random(3)
    path = tmp_path / "snapshot_rank0.pickle"
    uneven: list[Any] = [None, -1, 1 << 70, "x", [], {}, [{}], True, 1e300, "ProfilerStep#9"]
    for n in range(300):
        if n % 2:
            cut = bytearray(data)
            for _ in range(generator.randint(1, 6)):
                cut[generator.randrange(len(cut))] = generator.randrange(256)
            path.write_bytes(bytes(cut))
        else:
            value = pickle.loads(data)  # noqa: S301  # our own
            for _ in range(generator.randint(1, 8)):
                event = generator.choice(
                    [*value["device_traces"][0], *value["segments"][0]["blocks"], *value["external_annotations"]]
                )
                event[generator.choice(list(event))] = generator.choice(uneven)
            path.write_bytes(pickle.dumps(value))
        try:
            loaded = SnapshotFile(path, path.name, 0, Limits()).load()
        except ValueError:
            continue
        for device in loaded.devices.values():
            rows = device.history.rows if device.history is not None else []
            assert all(size >= 0 for _, sizes in rows for size in sizes)
            assert len(rows) <= memory_levels.MAX_ROWS + 2


def test_a_trace_of_a_gpu_has_what_lay_there_before_and_what_is_reserved(tmp_path):
    """What was there before and is freed in the window goes; nobody knows what it was."""
    total_bytes, reserved, events = 100, 200, []
    span = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 0.5, "dur": 99.0, "tid": 1}
    moves = ((1, 7, 50, 200), (2, 8, 90, 400), (3, 99, -40, 400), (4, 8, -90, 400), (5, 9, 10, 250))
    for time_us, address, size, reserved in moves:
        total_bytes += size
        args = {"Bytes": size, "Addr": address, "Total Allocated": total_bytes, "Total Reserved": reserved,
                "Device Type": 1, "Device Id": 0}  # fmt: skip
        events.append({"ph": "i", "name": "[memory]", "ts": float(time_us), "tid": 1, "args": args})
    trace = {"distributedInfo": {"rank": 2, "world_size": 4}, "traceEvents": [span, *events]}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    record = measures_of(tmp_path)["ranks"]["2"]
    stack = record["over_time"]
    assert (stack["of"], record["peak_bytes"], stack["peak"]["bytes"], stack["peak"]["step"]) == (
        "tensors",
        240,
        240,
        4,
    )
    assert stack["kinds"] == ["not attributed", "reserved, in no tensor"]
    settled = {time_s: sizes for time_s, *sizes in stack["rows"]}
    assert settled == {0.0: [150, 50], 1e-6: [240, 160], 2e-6: [200, 200], 3e-6: [110, 290], 4e-6: [120, 130]}
