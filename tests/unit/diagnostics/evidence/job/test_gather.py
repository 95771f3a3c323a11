"""Gathering: every kind found by content, nothing followed out of the folder, the same from any names and order."""
# ruff: noqa: E501  # texts as they are printed, one case a line

import gzip
import json
import os
import pickle
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import FINISHED, Failure, RunPaths, Status, Verdict, write_json
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job import gather as module
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.flight import FlightFile
from tests.unit.diagnostics.evidence.texts import TORCHRUN, TWO_RANKS

LIMITS = Limits()


def flight(rank: int, world_size: int = 2, entries: int = 3) -> dict[str, Any]:
    """A small dump as torch writes it for NCCL."""
    ranks = str(list(range(world_size)))
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "entries": [
            {"record_id": i, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1, "state": "completed",
             "profiling_name": "nccl:all_reduce", "input_sizes": [[rank + 1]], "time_created_ns": 1 << 60}
            for i in range(entries)
        ],
    }  # fmt: skip


def put(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (
        value
        if isinstance(value, bytes)
        else value.encode()
        if isinstance(value, str)
        else pickle.dumps(value, protocol=2)
    )
    path.write_bytes(data)
    return path


def problems(evidence: Evidence) -> dict[str, str]:
    return {problem.file: problem.what for problem in evidence.problems}


def make_run(folder: Path, state: str = "failed", attempt: int = 1) -> RunPaths:
    """A run folder as dtk leaves it."""
    paths = RunPaths(folder)
    failure = Failure(
        rank=1, reason="killed by SIGKILL", step=4, region="backward", exit_code=-9, kind="killed", signal="SIGKILL"
    )
    write_json(paths.status, Status(state=state, attempt=attempt, exit_code=1, failure=failure))  # type: ignore[arg-type]
    manifest = {"schema_version": 1, "run_id": folder.name, "topology": {"world_size": 2},
                "environment": {"NCCL_DEBUG": "INFO", "HOME": "/root"}}  # fmt: skip
    write_json(paths.manifest, manifest)
    put(folder, "config.yaml", "strategy:\n  name: ddp\n  bucket_cap_mb: 25\n")
    for rank in (0, 1):
        put(folder, f"events/rank_{rank:05d}.jsonl", '{"kind": "event", "name": "old", "attempt": 0}\n'
            '{"kind": "event", "name": "start", "attempt": 1}\n{"kind": "span", "name": "x"}\n{"kind": "event", "na')  # fmt: skip
        put(folder, f"flight/rank_{rank:05d}.pickle", flight(rank))
        black_box = {"schema_version": 1, "rank": rank, "time_s": 1.0, "recorders": {"host": flight(rank)}}
        put(folder, f"flight/rank_{rank:05d}.blackbox.json", json.dumps(black_box))
    put(folder, "logs/attempt_0/rank_00000/stderr.log", "CUDA out of memory. Tried to allocate 2.00 GiB\n")
    put(folder, "logs/attempt_1/rank_00000/stderr.log", "Timed out waiting 6000ms for recv operation to complete\n")
    put(folder, "checkpoints/step_00000001/weights.pickle", b"cos\nsystem\n.")
    return paths


def test_a_run_of_dtk(tmp_path: Path) -> None:
    run = tmp_path / "20261121-run"
    make_run(run)
    evidence = gather(run, LIMITS)
    assert evidence.run is not None
    assert evidence.world_size == 2
    assert evidence.run.get("strategy.bucket_cap_mb") == 25
    assert evidence.run.attempt == 1
    assert [event["name"] for event in evidence.run.events[0]] == ["start"]
    assert [(handle.rank, handle.file) for handle in evidence.handles(FlightFile)] == [
        (0, "flight/rank_00000.pickle"), (1, "flight/rank_00001.pickle")]  # fmt: skip
    assert [(fact.kind, fact.rank) for fact in evidence.facts] == [("gloo_timeout", 0)]
    (error,) = evidence.errors
    assert (error.rank, error.signal, error.step, error.region) == (1, "SIGKILL", 4, "backward")
    assert evidence.environment == {-1: {"NCCL_DEBUG": "INFO"}}
    assert evidence.problems == []


def test_a_black_box_counts_where_there_is_no_dump(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run)
    (run / "flight/rank_00001.pickle").unlink()
    assert [handle.path.name for handle in gather(run, LIMITS).handles(FlightFile)] == [
        "rank_00000.pickle",
        "rank_00001.blackbox.json",
    ]


def test_damaged_records_of_a_run_are_problems(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paths = make_run(run)
    paths.status.write_text('{"state": "fail', encoding="utf-8")
    paths.config.write_text("a: [&x 1, *x", encoding="utf-8")
    evidence = gather(run, LIMITS)
    assert evidence.run is not None
    assert evidence.run.status is None
    assert evidence.run.config == {}
    assert set(problems(evidence)) == {"status.json", "config.yaml"}


def test_a_run_that_still_goes_on_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, state="running")
    assert "still running" in problems(gather(run, LIMITS))["status.json"]


def test_a_folder_of_runs_names_one(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b")
    with pytest.raises(DiagnosticsError, match=r"holds 2 runs; name one: .*dtk diagnose .*b$"):
        gather(tmp_path / "runs", LIMITS)


def test_a_wrong_run_id_is_answered_with_the_near_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "20261121-run-acef")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiagnosticsError, match=r"does not exist; did you mean runs/20261121-run-acef\?"):
        gather(Path("20261121-run-ac"), LIMITS)
    with pytest.raises(DiagnosticsError, match=r"did you mean runs/20261121-run-acef\?"):
        gather(Path("runs/20261121-run-acee"), LIMITS)


def mixed(folder: Path, names: dict[str, str] | None = None) -> None:
    """One folder with every small kind; `names` renames files."""
    files: dict[str, Any] = {
        "fr/dump_0": flight(0), "fr/dump_1": flight(1), "fr/dump_2": json.dumps(flight(2)),
        "out.log": TWO_RANKS, "launcher.txt": TORCHRUN, "node.rank4.err": "CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "stacks_rank3.txt": 'Thread 0x01 (most recent call first):\n  File "train.py", line 3 in main\n',
        "elastic/attempt_0/1/error.json": json.dumps({"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "5"}}}),
        "train.py": "print('Traceback (most recent call last):')", "weights.safetensors": b"\0" * 100, "README.md": "x",
        "settings.json": '{"lr": 1}', "notes.txt": "nothing here",
    }  # fmt: skip
    for name, value in files.items():
        put(folder, (names or {}).get(name, name), value)


def test_all_kinds_of_a_foreign_job(tmp_path: Path) -> None:
    mixed(tmp_path)
    evidence = gather(tmp_path, LIMITS)
    assert [handle.rank for handle in evidence.handles(FlightFile)] == [0, 1, 2]
    assert {error.rank for error in evidence.errors} >= {0, 1, 8, 9, 10}
    assert [dump.rank for dump in evidence.stacks] == [3]
    assert [fact.rank for fact in evidence.facts if fact.kind == "cuda_oom"] == [4]
    assert evidence.run is None


def shape(evidence: Evidence) -> Any:
    """What detectors see, without the names of files."""
    return (
        evidence.world_size,
        [(handle.rank, handle.path.read_bytes()) for handle in evidence.handles(FlightFile)],
        sorted((e.rank or 0, e.type, e.message, e.frames, e.signal or "", e.exit_code or 0) for e in evidence.errors),
        sorted((f.kind, f.rank or 0, f.line, str(f.fields)) for f in evidence.facts),
        sorted((s.rank or 0, s.threads) for s in evidence.stacks),
        sorted((p.kind, p.what) for p in evidence.problems),
    )


@pytest.mark.parametrize("seed", range(6))
def test_names_and_order_change_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(tmp_path / "a")
    prefix = random.Random(seed).choice(["zz-", "host7/", "a b/\u00fc-", "0/x."])
    names = {"fr/dump_0": f"{prefix}tr_0", "fr/dump_1": f"{prefix}nccl_trace_rank_1", "fr/dump_2": "fr/comm_lib_trace_rank_2",
             "out.log": f"{prefix}console.out", "launcher.txt": "zzz/torchrun.log"}  # fmt: skip
    mixed(tmp_path / "b", names)
    expected = shape(gather(tmp_path / "a", LIMITS))
    real = os.scandir

    def shuffled(folder: Any) -> Any:
        with real(folder) as nsys_file:
            entries = list(nsys_file)
        random.Random(seed).shuffle(entries)
        return _Listing(entries)

    monkeypatch.setattr(os, "scandir", shuffled)
    assert shape(gather(tmp_path / "b", LIMITS)) == expected


class _Listing:
    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def __enter__(self) -> list[Any]:
        return self.entries

    def __exit__(self, *_: object) -> None:
        pass


def test_two_files_for_one_rank_are_said_and_chosen_by_content(tmp_path: Path) -> None:
    put(tmp_path, "a_rank_0", flight(0, entries=2))
    put(tmp_path, "b_rank_0", flight(0, entries=40))
    put(tmp_path, "c_rank_1", flight(1))
    put(tmp_path, "d/c_rank_1", flight(1))
    evidence = gather(tmp_path, LIMITS)
    assert [(handle.rank, len(handle.path.read_bytes()) > 1500) for handle in evidence.handles(FlightFile)] == [
        (0, True),
        (1, False),
    ]
    assert list(problems(evidence).values()) == ["rank 0 has 2 different files: b_rank_0 is used, a_rank_0 not"]


def test_the_same_ranks_in_two_folders_are_two_jobs(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        for rank in range(2):
            put(tmp_path, f"{folder}/rank_{rank}", flight(rank, entries=len(folder) + ord(folder[0])))
    with pytest.raises(DiagnosticsError, match=r"2 folders hold flight files of the same ranks \(one, two\).*name one"):
        gather(tmp_path, LIMITS)


def test_dumps_of_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "rank_0", flight(0, world_size=2))
    put(tmp_path, "rank_1", flight(1, world_size=4))
    with pytest.raises(DiagnosticsError, match=r"holds files of 2 jobs: 2 ranks \(rank_0\) and 4 ranks \(rank_1\)"):
        gather(tmp_path, LIMITS)


def later(dump: dict[str, Any], seconds: float) -> dict[str, Any]:
    for entry in dump["entries"]:
        entry["time_created_ns"] = (1_700_000_000 + entry["record_id"]) * 10**9 + int(seconds * 1e9)
    return dump


@pytest.mark.parametrize(
    ("dumps", "jobs"),
    [
        ({"a_0": later(flight(0), 0), "b_0": later(flight(0, entries=9), 40), "a_1": later(flight(1), 0)}, True),
        ({"a_0": later(flight(0), 0), "b_0": later(flight(0, entries=9), 0), "a_1": later(flight(1), 0)}, False),
        ({"a_0": later(flight(0), 0), "a_1": later(flight(1), 600)}, False),
    ],
)
def test_dumps_of_different_moments_are_two_jobs(tmp_path: Path, dumps: dict[str, Any], jobs: bool) -> None:
    for name, dump in dumps.items():
        put(tmp_path, name, dump)
    if jobs:
        with pytest.raises(DiagnosticsError, match="holds files of 2 jobs: "):
            gather(tmp_path, LIMITS)
    else:
        assert [handle.rank for handle in gather(tmp_path, LIMITS).handles(FlightFile)] == [0, 1]


def test_dumps_a_day_apart_are_not_compared(tmp_path: Path) -> None:
    put(tmp_path, "a_0", later(flight(0), 0))
    put(tmp_path, "a_1", later(flight(1), 86_400))
    report = diagnose(tmp_path)
    assert not report.root_causes and "the ranks are not compared" in report.statement


ERROR = """step 1
Traceback (most recent call last):
  File "/u/me/train.py", line 5, in <module>
    x = y[3]
IndexError: list index out of range
"""


def test_a_log_of_one_process_is_rank_0(tmp_path: Path) -> None:
    put(tmp_path, "train.log", ERROR)
    assert [error.rank for error in gather(tmp_path, LIMITS).errors] == [0]
    put(tmp_path, "rank_1", flight(1))
    assert [error.rank for error in gather(tmp_path, LIMITS).errors] == [None]


def test_local_ranks_of_a_second_node_are_not_taken_for_global_ones(tmp_path: Path) -> None:
    line = "[default1]: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    put(tmp_path / "one", "a.log", line)
    assert [fact.rank for fact in gather(tmp_path / "one", LIMITS).facts] == [1]
    put(tmp_path / "two", "a.log", line)
    put(tmp_path / "two", "b.log", line)
    assert {fact.rank for fact in gather(tmp_path / "two", LIMITS).facts} == {None}
    put(tmp_path / "three", "a.log", line + TORCHRUN)
    assert [fact.rank for fact in gather(tmp_path / "three", LIMITS).facts if fact.kind == "cuda_oom"] == [9]


def test_links_fifos_and_unreadable_files(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside/rank_7", flight(7))
    folder = tmp_path / "job"
    put(folder, "rank_0", flight(0))
    (folder / "rank_1").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "up").symlink_to(tmp_path)
    (folder / "gone").symlink_to(folder / "nothing")
    (folder / "again_rank_0").symlink_to(folder / "rank_0")
    os.mkfifo(folder / "rank_2")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
    evidence = gather(folder, LIMITS)
    assert [handle.rank for handle in evidence.handles(FlightFile)] == [0]
    said = problems(evidence)
    assert set(said) == {"rank_1", "up", "gone", "rank_2"}
    assert said["rank_2"] == "a named pipe: not opened"
    assert "leads out of the folder" in said["rank_1"]
    with pytest.raises(DiagnosticsError, match="neither a folder nor a file"):
        gather(folder / "rank_2", LIMITS)


def test_an_unreadable_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "rank_0", flight(0))
    put(tmp_path, "rank_1", flight(1))
    real = module.head

    def refuse(path: Path, *args: int) -> bytes:
        if path.name == "rank_1":
            raise PermissionError(13, "Permission denied")
        return real(path, *args)

    monkeypatch.setattr(module, "head", refuse)
    assert problems(gather(tmp_path, LIMITS)) == {"rank_1": "Permission denied"}


HOSTILE = {
    "runs.pickle": b"cposix\nsystem\n(S'touch ran'\ntR.",
    "runs4.pkl": b"\x80\x04\x95\x15\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "empty.json": b"",
    "rank_3.pickle": b"",
    "cut.pickle": pickle.dumps({"a": list(range(1000))})[:500],
}


def test_hostile_and_broken_files_are_lines_not_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "job"
    put(folder, "rank_0", flight(0))
    put(folder, "bomb.gz", gzip.compress(b"\0" * 50_000_000))
    put(
        folder, "bomb.log", gzip.compress(b"CUDA out of memory. Tried to allocate 2.00 GiB\n" + b"a\n" * 100_000_000, 9)
    )
    put(folder, "deep.json", b"[" * 1_000_000)
    put(folder, "noise", bytes(random.Random(1).randrange(256) for _ in range(20_000)))
    for name, data in HOSTILE.items():
        put(folder, name, data)
    evidence = gather(folder, LIMITS)
    said = problems(evidence)
    assert said["runs.pickle"] == said["runs4.pkl"] == "refused: it would execute posix.system"
    assert said["empty.json"] == said["rank_3.pickle"] == "it is empty"
    assert "damaged" in said["cut.pickle"]
    assert "times its size" in said["bomb.log"]
    assert not (tmp_path / "ran").exists()
    assert [handle.rank for handle in evidence.handles(FlightFile)] == [0]


def test_nothing_usable_says_why(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticsError, match="is empty; looked for flight-recorder dumps"):
        gather(tmp_path, LIMITS)
    put(tmp_path, "notes.md", "x")
    put(tmp_path, "a.py", "x")
    put(tmp_path, "b.py", "x")
    with pytest.raises(DiagnosticsError, match=r"found 2 \.py, 1 \.md; looked for flight-recorder dumps"):
        gather(tmp_path, LIMITS)
    put(tmp_path, "evil.pickle", HOSTILE["runs.pickle"])
    with pytest.raises(DiagnosticsError, match=r"evil\.pickle: refused: it would execute posix\.system"):
        gather(tmp_path, LIMITS)


def test_what_was_found_is_told_where_all_of_it_is_empty(tmp_path: Path) -> None:
    for name in ("0/stderr.log", "0/stdout.log", "dump"):
        put(tmp_path, name, b"")
    text = r"found 2 \.log, 1 without an ending, all of them empty; looked for flight-recorder dumps"
    with pytest.raises(DiagnosticsError, match=text):
        gather(tmp_path, LIMITS)
    put(tmp_path, "notes.md", b"x")
    with pytest.raises(DiagnosticsError, match=r"1 \.md, 1 without an ending, 3 of them empty; looked for"):
        gather(tmp_path, LIMITS)


def test_one_file(tmp_path: Path) -> None:
    path = put(tmp_path, "x_rank_5", flight(5))
    evidence = gather(path, LIMITS)
    assert [(handle.rank, handle.file) for handle in evidence.handles(FlightFile)] == [(5, "x_rank_5")]


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for rank in range(30):
        put(tmp_path, f"rank_{rank:02d}", flight(rank))
    evidence = gather(tmp_path, Limits(files=10))
    assert len(evidence.handles(FlightFile)) == 10
    assert "over 10 files" in problems(evidence)["."]


def test_progress_is_told_when_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        put(tmp_path, f"rank_{rank}", flight(rank))
    said: list[str] = []
    gather(tmp_path, LIMITS, said.append)
    assert said == []
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    gather(tmp_path, LIMITS, said.append)
    assert said[-1] == "looked at 2 files: 2 flight"


def test_a_rank_of_nccl_beyond_all_numbers_is_none(tmp_path: Path) -> None:
    """It once became text, which cannot be sorted among numbers."""
    huge = "comm 0x1 rank 199999999999999999999 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - Init START"
    (tmp_path / "out.log").write_text(
        "g:7:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        f"g:7:9 [0] NCCL INFO ncclCommInitRank {huge}\n"
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
    assert {fact.rank for fact in gather(tmp_path, Limits()).facts} <= {None, 0}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("llama_rank_7b_{}", None), ("llama-rank7B-{}.pickle", None), ("rank{}of8", None), ("rank_{}b_rank_{}", None),
        ("trace_rank_{}_pid4711.json", None),
    ],
)  # fmt: skip
def test_a_size_beside_the_word_rank_is_no_rank(tmp_path: Path, name: str, rank: int | None) -> None:
    for number in range(2):
        put(tmp_path, name.format(number, number), flight(number))
    assert [file.rank for file in gather(tmp_path, LIMITS).handles(FlightFile)] == [0, 1]


def test_what_holds_no_evidence_is_named_once(tmp_path: Path) -> None:
    put(tmp_path, "rank_0.pickle", flight(0))
    put(tmp_path, "rank_00000000000000000000009.json", '{"a": 1}')
    put(tmp_path, "broken.json", '{"a": [1, 2')
    put(tmp_path, "bytes.dat", bytes(range(256)) * 9)
    put(tmp_path, "heartbeat/rank_00000.json", "{}")
    (note,) = [problem for problem in gather(tmp_path, LIMITS).problems if problem.harmless]
    assert note.what == "no evidence in broken.json, bytes.dat, rank_00000000000000000000009.json"


def test_coverage_counts_what_could_be_read(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path, f"rank_{rank}.pickle", flight(rank, 3) if rank else pickle.dumps(flight(rank, 3))[:90])
    (line,) = [row for row in diagnose(tmp_path).coverage if row.kind == "flight"]
    assert (line.ranks_present, line.ranks_expected) == (2, 3)
    assert line.problems[0] == "rank 0: no dump" and line.problems[1].startswith("rank_0.pickle: ")


def test_a_good_end_under_the_watch_and_its_verdict_are_evidence(tmp_path: Path) -> None:
    for rank in range(2):
        put(tmp_path, f"rank_{rank}.pickle", flight(rank))
    assert diagnose(tmp_path).outcome != "healthy"
    write_json(tmp_path / "finished.json", {"kind": FINISHED, "command": ["torchrun"], "time_s": 2.0})
    assert diagnose(tmp_path).outcome == "healthy"
    log = put(tmp_path, "stderr.log", TWO_RANKS)
    assert diagnose(tmp_path).outcome != "healthy", "a script may exit with 0 whatever becomes of its ranks"
    log.unlink()
    (tmp_path / "finished.json").unlink()
    write_json(tmp_path / "watch.json", Verdict("stall", "nothing moved for 9 s", [], [], time_s=2.0))
    assert [fact.text for fact in gather(tmp_path, LIMITS).facts if fact.kind == "watch_verdict"] == [
        "nothing moved for 9 s"
    ]


@pytest.mark.parametrize("begins", ['{"dtk_start": ', '{"kind": "stall", "reason": '])
@pytest.mark.parametrize("rest", ["[" * 100_000, "1e999}", '"x", "time_s": "y"}', "null, ", "3}"])
def test_hostile_records_of_the_watch_are_problems(tmp_path: Path, begins: str, rest: str) -> None:
    put(tmp_path, "rank_0.pickle", flight(0))
    put(tmp_path, "record.json", begins + rest)
    assert problems(gather(tmp_path, LIMITS)).get("record.json")


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "train.py", "nccl.md"])
@pytest.mark.parametrize("more", ["", "A loss is nan if the learning rate is too high, also while saving the model.\n"])
def test_a_text_that_is_not_of_a_job_is_said_in_one_line(tmp_path: Path, name: str, more: str) -> None:
    file = put(tmp_path, name, f"# A library for training\n\nRun `torchrun train.py` and read the log.\n{more}")
    with pytest.raises(DiagnosticsError) as error:
        gather(file, LIMITS)
    assert str(error.value).startswith(f"nothing in {file} is recognizable as part of a training job")
    log = put(tmp_path, "train.log", f"starts\n{more}")
    assert [fact.kind for fact in gather(log, LIMITS).facts] == (["non_finite_loss"] if more else ["nothing_known"])
    issue = put(tmp_path, "issue.md", TWO_RANKS)
    assert gather(issue, LIMITS).errors, "a log may have been pasted"
