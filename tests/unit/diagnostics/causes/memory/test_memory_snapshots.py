"""Snapshots of the allocator alone, as users take them: what grew, what was held as memory ran out, never healthy."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report import html
from diagnostics.report.diagnosis import document
from diagnostics.report.model import Report
from diagnostics.report.overview import headline

MIB = 1 << 20
_TORCH = "/usr/lib/python3/site-packages/torch/"


def frames(*places: str) -> list[dict[str, Any]]:
    """Innermost first, each as `file:line function`."""
    split = (place.partition(" ") for place in places)
    return [
        {"filename": at.partition(":")[0], "line": int(at.partition(":")[2]), "name": name} for at, _, name in split
    ]


FORWARD = frames(
    f"{_TORCH}nn/functional.py:9 linear", f"{_TORCH}nn/modules/module.py:7 _call_impl", "/job/train.py:40 f"
)
BACKWARD = frames("x.cpp:0 torch::autograd::Engine::evaluate_function", "/job/train.py:45 main")
INIT = frames(f"{_TORCH}optim/adamw.py:120 _init_group", "/job/train.py:50 main")
UPDATE = frames(f"{_TORCH}optim/adamw.py:330 _single_tensor_adamw", "/job/train.py:50 main")
KEPT = frames("/job/metrics.py:17 update", "/job/train.py:55 main")
SAVE = frames(f"{_TORCH}distributed/checkpoint/state_dict.py:500 get_model_state_dict", "/job/save.py:22 save")
GATHERED = frames(
    f"{_TORCH}distributed/_functional_collectives.py:9 all_gather_tensor",
    f"{_TORCH}distributed/tensor/_api.py:600 full_tensor",
    "/job/save.py:22 save",
)


class Job:
    """A training whose allocator records its history."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.reserved = 0

    def _event(self, action: str, address: int, mib: int, at: list[dict[str, Any]], **more: Any) -> None:
        time_us = 1_700_000_000_000_000 + 10 * len(self.events)
        event = {"action": action, "addr": address, "size": mib * MIB, "stream": 0, "time_us": time_us, "frames": at}
        self.events.append(event | more)

    def allocate(self, mib: int, at: list[dict[str, Any]]) -> int:
        address = len(self.events) + 1 << 40
        self.alive[address] = mib * MIB, at
        if (more := sum(size for size, _ in self.alive.values()) // MIB - self.reserved) > 0:
            self._event("segment_alloc", address, more, at)
            self.reserved += more
        self._event("alloc", address, mib, at)
        return address

    def free(self, address: int) -> None:
        size, _ = self.alive.pop(address)
        self._event("free_requested", address, size // MIB, [])
        self._event("free_completed", address, size // MIB, [])

    def run_out(self, mib: int, at: list[dict[str, Any]], free_mib: int = 50) -> None:
        self._event("oom", 0, mib, at, device_free=free_mib * MIB)

    def steps(self, count: int, keeps_mib: int = 0, first: int = 0) -> "Job":
        for step in range(first, first + count):
            activations = [self.allocate(100, FORWARD) for _ in range(4)]
            if keeps_mib:
                self.allocate(keeps_mib, KEPT)
            gradients = []
            for activation in activations:
                gradients.append(self.allocate(50, BACKWARD))
                self.free(activation)
            if step == 0:
                self.allocate(400, INIT)
            self.free(self.allocate(50, UPDATE))
            for gradient in gradients:
                self.free(gradient)
        return self

    def without_stacks(self) -> "Job":
        for event in self.events:
            event["frames"] = []
        self.alive = {address: (size, []) for address, (size, _) in self.alive.items()}
        return self

    def diagnosed(self, folder: Path, name: str = "snapshot_rank1.pickle") -> Report:
        blocks = [
            {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": at}
            for address, (size, at) in self.alive.items()
        ]
        unused = self.reserved * MIB - sum(size for size, _ in self.alive.values())
        blocks.append({"address": 1, "size": unused, "state": "inactive", "frames": []})
        segment = {
            "device": 0,
            "address": 1,
            "total_size": self.reserved * MIB,
            "segment_type": "large",
            "blocks": blocks,
        }
        value = {"segments": [segment], "device_traces": [self.events], "allocator_settings": {}}
        (folder / name).write_bytes(pickle.dumps(value))
        return diagnose(folder)


@pytest.mark.parametrize("ran_out", [True, False])
def test_what_every_step_leaves_behind_is_a_leak_at_its_line(tmp_path: Path, ran_out: bool) -> None:
    job = Job().steps(8, keeps_mib=64)
    if ran_out:
        job.run_out(100, FORWARD)
    report = job.diagnosed(tmp_path)
    (cause,) = report.root_causes
    assert (report.outcome, cause.cause, cause.ranks) == ("oom" if ran_out else "at_risk", "memory.leak", (1,))
    assert "64 MiB behind on rank 1 at metrics.py:17" in text_of(cause).summary
    assert cause.cost is not None and cause.cost.value == 100 * 64 * MIB


def test_a_small_leak_is_confirmed_by_many_steps(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    assert not Job().steps(4, keeps_mib=7).diagnosed(few).root_causes
    (cause,) = Job().steps(16, keeps_mib=7).diagnosed(many).root_causes
    assert (cause.cause, cause.ranks) == ("memory.leak", (1,)) and "metrics.py:17" in text_of(cause).summary


@pytest.mark.parametrize(("free_mib", "is_cause"), [(50, True), (20 << 10, False)])
def test_memory_in_pieces_explains_no_request_for_which_the_device_had_room(
    tmp_path: Path, free_mib: int, is_cause: bool
) -> None:
    job = Job().steps(3)
    job.free(job.allocate(8 << 10, FORWARD))
    job.run_out(512, FORWARD, free_mib)
    causes = [cause.cause for cause in job.diagnosed(tmp_path).root_causes]
    assert ("memory.fragmentation" in causes) == is_cause


def test_what_stays_of_two_steps_only_is_no_leak(tmp_path: Path) -> None:
    job = Job().steps(2, keeps_mib=64).steps(6, first=2)
    report = job.diagnosed(tmp_path)
    assert not report.root_causes and report.outcome == "undecided"


def test_a_rise_without_stacks_is_told_but_may_be_the_layers_of_a_forward_pass(tmp_path: Path) -> None:
    report = Job().steps(8, keeps_mib=64).without_stacks().diagnosed(tmp_path)
    assert not report.root_causes and report.outcome == "undecided"
    (leak,) = [finding.finding for finding in report.findings if finding.finding.cause == "memory.leak"]
    assert leak.status == "undecided" and "leaves 64 MiB more behind on rank 1" in text_of(leak).summary
    assert "leaves 64 MiB more behind on rank 1" in headline(report)


@pytest.mark.parametrize(("tensors", "at_once", "is_cause"), [(40, True, True), (40, False, False), (4, True, False)])
def test_a_full_state_dict_in_the_peak_of_a_job_that_went_on(
    tmp_path: Path, tensors: int, at_once: bool, is_cause: bool
) -> None:
    """Exported one by one, each tensor is freed before the next."""
    job, kept = Job(), []
    for _ in range(10):
        job.allocate(20, frames(f"{_TORCH}nn/modules/linear.py:100 __init__", "/job/train.py:10 build"))
    job.steps(3)
    for _ in range(tensors):
        kept.append(job.allocate(40, GATHERED))
        if not at_once:
            job.free(kept.pop())
    for address in kept:
        job.free(address)
    report = job.steps(2, first=3).diagnosed(tmp_path)
    assert [root_cause.cause for root_cause in report.root_causes] == (["memory.full_state_dict"] if is_cause else [])
    if is_cause:
        (cause,) = report.root_causes
        assert (report.outcome, cause.ranks, cause.where[0].line) == ("at_risk", (1,), 22)
        assert "40 tensors, 1.56 GiB (73% of the peak" in text_of(cause).summary


def test_a_snapshot_that_shows_nothing_wrong_is_not_healthy_and_tells_what_it_holds(tmp_path: Path) -> None:
    report = Job().steps(8).diagnosed(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    text = headline(report)
    assert "in tensors on rank 1" in text and "activations" in text and "optimizer states (" in text


def test_activations_that_fill_the_device_as_memory_runs_out(tmp_path: Path) -> None:
    job = Job().steps(1)
    for _ in range(20):
        job.allocate(200, FORWARD)
    job.run_out(200, FORWARD)
    report = job.diagnosed(tmp_path)
    (cause,) = report.root_causes
    assert (report.outcome, cause.cause, cause.evidence[0].kind) == ("oom", "memory.activations", "snapshot")
    assert [(place.file, place.line) for place in cause.where] == [("/job/train.py", 40)]


def test_a_full_state_dict_is_told_by_the_frames_of_the_request(tmp_path: Path) -> None:
    job = Job().steps(1)
    job.run_out(4096, SAVE)
    (cause,) = job.diagnosed(tmp_path).root_causes
    assert cause.cause == "memory.full_state_dict" and "get_model_state_dict" in text_of(cause).summary


def test_a_request_that_cannot_fit_confirms_nothing_and_is_told(tmp_path: Path) -> None:
    job = Job().steps(1)
    job.run_out(8192, INIT)
    report = job.diagnosed(tmp_path)
    assert (report.outcome, report.root_causes) == ("oom", ())
    assert "a request of 8 GiB failed; 650 MiB in tensors on rank 1" in headline(report)


def test_figures_are_those_of_the_moment_of_failure_not_of_the_snapshot(tmp_path: Path) -> None:
    """An exception lets go of tensors before `except` takes the snapshot: nothing was unused as the request failed."""
    job = Job().steps(1)
    kept = [job.allocate(200, FORWARD) for _ in range(5)]
    job.run_out(100, FORWARD)
    for address in kept:
        job.free(address)
    report = job.diagnosed(tmp_path)
    assert [cause.cause for cause in report.root_causes] == ["memory.activations"]


def test_without_a_history_what_is_held_is_told(tmp_path: Path) -> None:
    job = Job().steps(1)
    job.events = []
    assert headline(job.diagnosed(tmp_path)) == "no cause is confirmed: 400 MiB in tensors on rank 1"


def test_a_snapshot_that_names_no_rank_is_of_an_unidentified_rank(tmp_path: Path) -> None:
    job = Job().steps(8, keeps_mib=64)
    job.free(job.allocate(2 << 10, FORWARD))
    job.run_out(512, FORWARD)
    report = job.diagnosed(tmp_path, "snapshot.pickle")
    (cause,) = report.root_causes  # It explains the unused memory in the same file.
    assert (report.outcome, cause.cause, cause.ranks) == ("oom", "memory.leak", ())
    assert "64 MiB behind on an unidentified rank at metrics.py:17" in text_of(cause).summary
    assert {place.rank for place in cause.where} == {None} and cause.evidence[0].file == "snapshot.pickle"
    assert report.measures["memory"]["ranks"] == {}
    assert list(report.measures["memory"]["unidentified"]) == ["snapshot.pickle"]
    page = html.render(document(report))
    assert "rank 0" not in page and "source line" in page and "snapshot.pickle: peak of tensors" in page


def test_snapshots_that_name_no_rank_stay_apart_and_never_belong_to_another_rank(tmp_path: Path) -> None:
    for name, count in (("a.pickle", 2), ("b.pickle", 20)):
        job = Job().steps(1)
        for _ in range(count):
            job.allocate(200, FORWARD)
        job.diagnosed(tmp_path, name)
    report = Job().steps(1).diagnosed(tmp_path, "snapshot_rank0.pickle")
    memory = report.measures["memory"]
    assert (list(memory["ranks"]), list(memory["unidentified"])) == (["0"], ["a.pickle", "b.pickle"])
    assert "in tensors on an unidentified rank (b.pickle): activations" in headline(report)


def test_a_failed_request_that_a_log_tells_is_not_told_again_by_a_snapshot_without_a_rank(tmp_path: Path) -> None:
    (tmp_path / "rank2.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 2 has a total capacity of "
        "39.38 GiB of which 50.00 MiB is free. Of the allocated memory 1.00 GiB is allocated by PyTorch, and "
        "38.00 GiB is reserved by PyTorch but unallocated.\n"
    )
    job = Job().steps(3)
    job.run_out(512, FORWARD)
    (cause,) = job.diagnosed(tmp_path, "snapshot.pickle").root_causes
    assert (cause.cause, cause.ranks) == ("memory.fragmentation", (2,))
