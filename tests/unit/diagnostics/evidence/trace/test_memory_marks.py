"""What a trace says of memory: allocations, collectives with their sizes, steps and units."""

import json

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.trace.memory_marks import is_worth_reading, read_marks, step_number


def event(name, cat="cpu_op", ts=1, dur=1, tid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def allocation(size, ts=1, **args):
    about = {"Bytes": size, "Addr": 5, "Total Allocated": 100, "Device Type": 1, "Device Id": 0, **args}
    return {"ph": "i", "name": "[memory]", "ts": ts, "tid": 7, "args": about}


@pytest.fixture
def marks(tmp_path):
    def read(*events, **header):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({**header, "traceEvents": list(events)}), encoding="utf-8")
        return read_marks(path, Limits())

    return read


def test_steps_and_regions_in_the_order_of_their_start(marks):
    read = marks(event("forward", "user_annotation", 5, 2), event("ProfilerStep#3", "user_annotation", 4, 9),
                 event("gloo:all_reduce", "user_annotation", 6), event("aten::add"))  # fmt: skip
    assert [(span.name, span.start_us, span.end_us) for span in read.spans] == [
        ("ProfilerStep#3", 4, 13),
        ("forward", 5, 7),
    ]
    assert [number for number, _ in read.steps] == [3]
    assert [span.name for span in read.backend] == ["gloo:all_reduce"]


def test_autograds_stretches_are_merged(marks):
    engine = "autograd::engine::evaluate_function: AddBackward0"
    read = marks(event(engine, ts=0, dur=10), event(engine, ts=500, dur=10), event(engine, ts=5000, dur=10))
    assert [(span.start_us, span.end_us) for span in read.backward] == [(0, 510), (5000, 5010)]


def test_allocations(marks):
    read = marks(allocation(100, 3), allocation(-100, 4), allocation("x"), allocation(5, 1e19))
    assert [(event.bytes, event.ts_us, event.thread, event.device_type) for event in read.events] == [
        (100, 3, 7, 1),
        (-100, 4, 7, 1),
    ]


def test_a_linked_collective_goes_before_its_operator(marks):
    linked = event("record_param_comms", **{"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 4,
                                            "Out msg nelems": 8, "Group size": 2})  # fmt: skip
    read = marks(
        linked, event("c10d::_allgather_base_", **{"Input Dims": [[8], [4]], "Input type": ["float", "float"]})
    )
    (call,) = read.calls
    assert (call.op, call.in_bytes, call.out_bytes, call.ranks, call.is_list) == ("all_gather", 16, 32, 2, False)


@pytest.mark.parametrize(
    ("name", "dims", "types", "op", "sizes", "ranks"),
    [
        ("c10d::_allgather_base_", [[8], [4]], ["float", "float"], "all_gather", (16, 32), 2),
        ("c10d::_reduce_scatter_base_", [[2], [8]], ["float", "float"], "reduce_scatter", (32, 8), 4),
        ("c10d::allreduce_", [[[3], [2]]], ["TensorList"], "all_reduce", (20, None), None),
        ("c10d::allgather_", [[[[4], [4]]], [[4]]], ["", "TensorList"], "all_gather", (16, None), None),
        ("_c10d_functional::all_reduce", [[5]], ["c10::BFloat16"], "all_reduce", (10, 10), None),
    ],
)
def test_shapes_of_an_operators_inputs(marks, name, dims, types, op, sizes, ranks):
    (call,) = marks(event(name, **{"Input Dims": dims, "Input type": types})).calls
    assert (call.op, (call.in_bytes, call.out_bytes), call.ranks) == (op, sizes, ranks)


def test_a_functional_gather_says_its_group(marks):
    shapes = {"Input Dims": [[4]], "Input type": ["float"], "Concrete Inputs": ["", "2", "0"]}
    (call,) = marks(event("_c10d_functional::all_gather_into_tensor", **shapes)).calls
    assert (call.op, call.in_bytes, call.out_bytes, call.ranks, call.functional) == ("all_gather", 16, 32, 2, True)


def test_damaged_arguments_cost_only_their_event(marks):
    read = marks(event("c10d::allreduce_", **{"Input Dims": "x", "Input type": 3}), event("record_param_comms"),
                 event("c10d::allreduce_", **{"Input Dims": [["x"]], "Input type": ["float"]}))  # fmt: skip
    assert read.calls == []


def test_sizes_of_gradients_and_python_functions(marks):
    shapes = {"Input Dims": [[4, 2]], "Input type": ["float"]}
    read = marks(event("torch::autograd::AccumulateGrad", **shapes), event("torch::autograd::AccumulateGrad"),
                 event("train.py(3): step", "python_function"))  # fmt: skip
    assert read.gradient_bytes == {32}
    assert read.has_functions
    assert not marks(event("aten::add")).has_functions


def test_rank_and_world_size_of_the_header(marks):
    read = marks(event("aten::add"), distributedInfo={"rank": 3, "world_size": 8})
    assert (read.rank, read.world_size) == (3, 8)


@pytest.mark.parametrize(
    ("name", "number"), [("ProfilerStep#12", 12), ("ProfilerStep#", None), ("ProfilerStep#x", None), ("step 3", None),
                         ("ProfilerStep#" + "9" * 12, None)],
)  # fmt: skip
def test_numbers_of_steps(name, number):
    assert step_number(name) == number


def test_whether_it_is_worth_decoding(tmp_path):
    path = tmp_path / "t.json"
    for text, worth in (
        ("aten::add", False),
        ("[memory]", True),
        ("FSDP::all_gather", True),
        ("c10d::allgather_", True),
    ):
        path.write_text(text)
        assert is_worth_reading(path, Limits()) is worth
    path.write_bytes(b"\x1f\x8bdamaged")
    assert not is_worth_reading(path, Limits()), "who reads the events tells of the damage"
