"""Whole logs: whose line it is, tracebacks of mixed writers, the launcher's list, speed, odd bytes."""
# ruff: noqa: E501  # texts as they are printed, one case a line

import json
import random
from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Frame
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers.log import _PATTERN_WORDS, WORDS, read, recognise
from tests.unit.diagnostics.evidence.texts import TORCHRUN, TWO_RANKS
from tests.work import calls_in


def scan(path: Path, text: str | bytes, rank: int | None = None, limits: Limits | None = None) -> Contents:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, path.name, rank, limits or Limits(), path.read_bytes()[:8192])


def test_tracebacks_of_two_ranks_that_write_at_the_same_time(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", TWO_RANKS)
    errors = {error.rank: error for error in contents.errors}
    assert set(errors) == {0, 1}
    assert errors[1].type == "KeyError"
    assert errors[1].message == "'x' (then ValueError: bad batch)"
    own = [(frame.file, frame.line, frame.function) for frame in errors[1].frames]
    assert own == [("train.py", 6, "fails"), ("train.py", 14, "main")]
    assert errors[0].type == "RuntimeError"
    assert "closed by peer" in errors[0].message
    assert [frame.function for frame in errors[0].frames] == ["all_reduce", "main"]


@pytest.mark.parametrize(
    "line",
    ["NCCL version 2.21.5+cuda12.4", "NCCL ver\x1b[31msion\x1b[0m 2.21.5+cuda12.4", '{"log": "NCCL v\\u0065rsion 2.21.5+cuda12.4"}'],
)  # fmt: skip
def test_words_inside_colours_and_escapes_of_json_are_seen(tmp_path: Path, line: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in main\n'
    (fact,) = scan(tmp_path / "x.log", f"{trace}{line}\n").facts
    assert fact.kind == "nccl_version" and fact.text == "NCCL version 2.21.5+cuda12.4"


def test_the_words_of_the_patterns_are_the_first_that_are_looked_for() -> None:
    assert [word.encode() for word in _PATTERN_WORDS] == list(WORDS[: len(_PATTERN_WORDS)])


TIMEOUT = (
    "[E909 09:55:46.1 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds"
)


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]:", "node7: [rank3]:", "[80746] [rank3]:", "worker-0 | [rank3]:", "job.nolog [stderr] [rank3]:",
        "(WorkerDict pid=349) [rank3]:", "[pod/train-0/main] [rank3]:", "2026-01-05T10:00:00.123456789Z stderr F [rank3]:",
        "Epoch 0:  6%|##   | 3/50 [6:28<94:39,  1.37it/s, loss=2.6][rank3]:", "\x1b[31m[rank3]:\x1b[0m",
        "  5%|#    | 3/50 [00:01<00:09]\r[rank3]:", "  3: [rank3]:",
    ],
)  # fmt: skip
def test_whatever_a_launcher_writes_before_the_rank(tmp_path: Path, prefix: str) -> None:
    (fact,) = scan(tmp_path / "x.log", f"starts\n{prefix}{TIMEOUT}\nends\n").facts
    assert (fact.kind, fact.rank, fact.fields["seq"], fact.line) == ("watchdog_timeout", 3, 7, 2)


def test_lines_that_a_container_runtime_wraps_in_json(tmp_path: Path) -> None:
    record = json.dumps({"log": f"[rank3]:{TIMEOUT}\n", "stream": "stderr", "time": "2026-01-05T10:00:00Z"})
    (fact,) = scan(tmp_path / "x.log", f'{{"no": 1}}\n{record}\n{{"log": 3}}\n').facts
    assert (fact.kind, fact.rank) == ("watchdog_timeout", 3)


def test_a_line_of_the_watchdog_that_something_folded(tmp_path: Path) -> None:
    text = (
        "host [stderr] [rank3]:[E909 09 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] Timeout at NCCL work: 2070, "
        "last enqueued \nNCCL work: 2082, last completed NCCL work: 2069.\n"
        "[rank1]:[E909 09 ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 1] last enqueued \n[rank0]: work: 5\n"
    )
    (fact,) = scan(tmp_path / "x.log", text).facts
    assert (fact.kind, fact.rank, fact.line) == ("watchdog_status", 3, 1)
    assert [fact.fields[name] for name in ("work", "last_enqueued", "last_completed")] == [2070, 2082, 2069]


@pytest.mark.parametrize("width", [31, 40, 57, 97])
def test_the_two_sides_of_detail_that_something_folded_in_many_places(tmp_path: Path, width: int) -> None:
    call = "CollectiveFingerPrint(SequenceNumber=912, OpType=ALLGATHER, TensorShape=[4, {}], TensorDtypes=Long, {})"
    kind = "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, memory_format=(nullopt))"
    text = (
        f" is running collective: {call.format(512, kind)}, but Rank 3 is running collective: {call.format(498, kind)}."
    )
    folded = "\n".join(text[at : at + width] for at in range(0, len(text), width))
    head = "[rank2]: RuntimeError: Detected mismatch between collectives on ranks. Rank 2"
    (fact,) = scan(tmp_path / "x.log", f"{head}{folded}\nstep 3\n").facts
    assert (fact.kind, fact.rank, fact.fields["rank_b"]) == ("collective_mismatch_text", 2, 3)
    assert "TensorShape=[4,512]" in fact.fields["call_a"] and "TensorShape=[4,498]" in fact.fields["call_b"]


CUT_WAIT = "[E ProcessGroupNCCL.cpp:737] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=46, OpType=ALLR"
CUT_SIDE = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, TensorDevi"
)


@pytest.mark.parametrize(
    ("line", "kind", "rank", "fields"),
    [
        (CUT_WAIT, "cut_line", 5, {}),
        (f"[rank7]: {CUT_WAIT}", "cut_line", 7, {}),
        (CUT_SIDE, "calls_differ", None, {"rank_a": 1}),
        (CUT_WAIT.partition("caught")[0], None, None, {}),
    ],
)
def test_what_the_last_line_tells_although_it_is_cut(
    tmp_path: Path, line: str, kind: str | None, rank: int | None, fields: dict[str, int]
) -> None:
    facts = [fact for fact in scan(tmp_path / "x.log", f"step 3\n{line}\n").facts if fact.kind != "steps"]
    assert [(fact.kind, fact.rank) for fact in facts] == ([(kind, rank)] if kind else [])
    assert fields.items() <= (facts[0].fields if facts else {}).items()


def test_a_timeout_of_the_store_that_a_terminal_folded(tmp_path: Path) -> None:
    text = "DistStoreError: Timed out after 1801 seconds waiting for clients. 1/4 clients \njoined.\n"
    (fact,) = scan(tmp_path / "x.log", text).facts
    assert (fact.kind, fact.fields["joined"], fact.fields["expected"]) == ("rendezvous_timeout", 1, 4)


@pytest.mark.parametrize(
    "at",
    ["caught collective |operation", "WorkNC|CL(", "WorkNCCL(|SeqNum", "S|eqNum", "7,| OpType", "OpT|ype=", "(ms|)="],
)
def test_a_terminal_folds_wherever_its_line_ends(tmp_path: Path, at: str) -> None:
    folded = TIMEOUT.replace(at.replace("|", ""), at.replace("|", "\n"))
    (fact,) = scan(tmp_path / "x.log", f"{folded}\n").facts
    assert (fact.kind, fact.rank, fact.fields["seq"], fact.fields["op"]) == ("watchdog_timeout", 3, 7, "ALLREDUCE")


def test_torchruns_list_of_failures(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", TORCHRUN)
    errors = {error.rank: error for error in contents.errors}
    assert set(errors) == {8, 9, 10}
    assert (errors[9].signal, errors[9].exit_code, errors[9].type) == ("SIGKILL", -9, "")
    assert (errors[8].signal, errors[8].exit_code) == ("SIGTERM", -15)
    assert (errors[10].type, errors[10].exit_code) == ("ValueError", 1)
    assert errors[10].message == "bad batch"
    assert errors[10].frames[0].line == 14
    assert contents.offset == 8


def test_prefixes_say_whose_line_it_is(tmp_path: Path) -> None:
    oom = "CUDA out of memory. Tried to allocate {}.00 MiB"
    lines = [
        f"[rank3]: RuntimeError: {oom.format(1)}",
        f"[1,5]<stderr>: {oom.format(2)}",
        f"\x1b[36m(TrainWorker rank=6, pid=77, ip=10.0.0.1)\x1b[0m {oom.format(3)}",
        f"2026-11-21T10:00:00.123456Z stdout F [rank7]: {oom.format(4)}",
        f"10%|# | 1/10\r20%|## | 2/10\r[rank8]: {oom.format(5)}",
        oom.format(6),
    ]
    contents = scan(tmp_path / "x.log", "\n".join(lines) + "\n", rank=2)
    assert [fact.rank for fact in contents.facts] == [3, 5, 6, 7, 8, None]  # The last one may be of any rank.
    (fact,) = scan(tmp_path / "x.log", lines[-1].replace("6", "7") + "\n", rank=2).facts
    assert fact.rank == 2


@pytest.mark.parametrize(
    ("others", "rank"),
    [
        ("", 0),
        ("[rank0]: step 1 loss 2.0\n", 0),
        ("[rank0]: step 1 loss 2.0\n[rank1]: hello\n", None),
        ("[1,3]<stdout>:hello\n", None),
        ("waits for [rank3]: it saves\n", 0),
    ],
)
def test_lines_without_a_prefix_are_of_the_rank_in_the_name_only_where_no_other_rank_writes(
    tmp_path: Path, others: str, rank: int | None
) -> None:
    (tmp_path / "log_rank0.txt").write_text(f"{others}{RAISED}{others}")
    ((error, *more), facts) = (evidence := gather(tmp_path, Limits())).errors, evidence.facts
    assert (error.rank, more) == (rank, [])
    assert any(fact.kind == "several_processes" for fact in facts) == (rank is None)


def test_a_list_of_other_ranks_shows_that_all_ranks_write_a_log(tmp_path: Path) -> None:
    row = LISTED.replace("rank      : 1 (local_rank: 1)", "rank      : 3 (local_rank: 3)")
    (tmp_path / "rank0.log").write_text(RAISED + row)
    assert {error.rank for error in gather(tmp_path, Limits()).errors} == {3}


def test_srun_labels(tmp_path: Path) -> None:
    text = "".join(f"{rank:2d}: step {step}\n" for step in range(4) for rank in range(12))
    contents = scan(
        tmp_path / "x.out", f"{text}11: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\n"
    )
    assert [fact.rank for fact in contents.facts] == [11]


def test_a_data_loader_workers_own_exception_is_the_cause(tmp_path: Path) -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 30, in main
    for batch in loader:
  File "/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 700, in __next__
    data = self._next_data()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "data.py", line 12, in __getitem__
    raise ValueError("broken record 17")
ValueError: broken record 17

"""
    (error,) = scan(tmp_path / "x.log", text, rank=4).errors
    assert (error.rank, error.type, error.message) == (4, "ValueError", "broken record 17")
    assert (error.frames[0].file, error.frames[0].line) == ("data.py", 12)


def test_a_spawned_process_names_its_rank(tmp_path: Path) -> None:
    text = """-- Process 3 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 5, in work
    raise ValueError("bad")
ValueError: bad
"""
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.rank, error.type) == (3, "ValueError")


def test_the_parent_of_spawned_processes_only_repeats_it(tmp_path: Path) -> None:
    text = """Traceback (most recent call last):
  File "main.py", line 28, in launch
    mp.spawn(work, nprocs=4)
  File "/lib/python3.6/site-packages/torch/multiprocessing/spawn.py", line 114, in join
    raise Exception(msg)
Exception:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 5, in work
    raise KeyError("name")
KeyError: 'name'
"""
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.rank, error.type, error.frames[0].line) == (2, "KeyError", 5)


RAY = """Traceback (most recent call last):
  File "main.py", line 12, in main
    ray.get(runner.run.remote(config))
  File "/lib/python3.11/site-packages/ray/_private/worker.py", line 900, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ValueError): ray::Runner.run() (pid=41, ip=10.0.0.7, actor_id=9f, repr=<main.Runner>)
  File "main.py", line 40, in run
    trainer.fit()
ray.exceptions.RayTaskError(ValueError): ray::Worker.update() (pid=52, ip=10.0.0.7, actor_id=b2, repr=<w.Worker>)
  File "actor.py", line 77, in update
    raise ValueError("no advantage")
ValueError: no advantage
"""


def test_what_a_task_of_ray_raised_is_the_cause(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", RAY)
    (error,) = contents.errors
    assert (error.type, error.message, error.rank) == ("ValueError", "no advantage", None)
    assert (error.frames[0].file, error.frames[0].line) == ("actor.py", 77)
    assert [frame.file for frame in error.frames][-1] == "main.py"
    assert [fact.kind for fact in contents.facts] == ["launcher_error"]


@pytest.mark.parametrize(
    ("of_task", "type_"),
    [("(OutOfMemoryError)", "OutOfMemoryError"), ("(ValueError)", "ValueError"), ("", "RayTaskError")],
)
def test_the_class_of_what_a_task_of_ray_raised_is_known_where_its_message_is_cut(
    tmp_path: Path, of_task: str, type_: str
) -> None:
    cut = RAY.replace("(ValueError): ray", f"{of_task}: ray").partition("    raise ValueError")[0]
    assert [(error.type, error.message) for error in scan(tmp_path / "x.log", cut).errors] == [(type_, "")]


def test_a_task_of_ray_that_lost_its_worker_raised_no_exception_of_a_rank(tmp_path: Path) -> None:
    cut = RAY.replace("RayTaskError(ValueError)", "RayTaskError(ActorDiedError)").partition("    raise ValueError")[0]
    contents = scan(tmp_path / "x.log", cut)
    assert not contents.errors and [fact.kind for fact in contents.facts] == ["launcher_error"]


def test_an_exception_of_torchrun_is_no_ranks(tmp_path: Path) -> None:
    text = """Traceback (most recent call last):
  File "/lib/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 155, in _create_tcp_store
    store = TCPStore(
RuntimeError: connect() timed out. Original timeout was 60000 ms.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/torch/distributed/run.py", line 719, in main
    run(args)
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.
"""
    contents = scan(tmp_path / "x.log", text)
    assert not contents.errors
    assert [fact.kind for fact in contents.facts] == ["store_timeout", "store_timeout", "launcher_error"]
    assert contents.facts[0].fields == {"timeout_ms": 60000}


@pytest.mark.parametrize("wrapper", ["/lib/torch/distributed/elastic/multiprocessing/errors/__init__.py", "train.py"])
def test_the_decorator_that_records_errors_runs_in_ranks(tmp_path: Path, wrapper: str) -> None:
    text = f"""Traceback (most recent call last):
  File "{wrapper}", line 345, in wrapper
    return f(*args)
  File "train.py", line 9, in main
    raise ValueError("own")
ValueError: own
"""
    (error,) = scan(tmp_path / "x.log", text).errors
    assert error.type == "ValueError"


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (
            "[c10d] The client socket has timed out after 900s while trying to connect to (10.1.2.3, 29500).",
            "store_timeout",
            {"timeout_s": 900, "peer": "10.1.2.3", "port": 29500},
        ),
        (
            "[c10d] The client socket has timed out after 60000ms while trying to connect to (node-1, 29500).",
            "store_timeout",
            {"timeout_ms": 60000, "peer": "node-1", "port": 29500},
        ),
        (
            "[c10d] The client socket has timed out after 60s while trying to connect to 10.0.0.1:1234",
            "store_timeout",
            {"timeout_s": 60, "peer": "10.0.0.1", "port": 1234},
        ),
        (
            "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /pytorch/aten/a.cpp:265",
            "cuda_error",
            {"error": "uncorrectable ECC error encountered"},
        ),
        (
            "socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort",
            "nccl_connect",
            {"peer": "127.0.0.1<45069>", "why": "Software caused connection abort"},
        ),
    ],
)
def test_the_same_fact_in_the_words_of_other_versions(
    tmp_path: Path, line: str, kind: str, fields: dict[str, object]
) -> None:
    (fact,) = scan(tmp_path / "x.log", f"{line}\n").facts
    assert (fact.kind, fact.fields) == (kind, fields)


def test_the_watchdogs_line_names_the_rank_of_a_cuda_error(tmp_path: Path) -> None:
    error = "CUDA error: uncorrectable ECC error encountered"
    head = "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: "
    contents = scan(tmp_path / "x.log", f"RuntimeError: {error}\n{head}{error}\n")
    assert [(fact.kind, fact.rank) for fact in contents.facts] == [("cuda_error", None), ("cuda_error", 1)]


def test_stacks_and_last_words_within_a_log(tmp_path: Path) -> None:
    text = """step 1
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "train.py", line 9 in step
  File "train.py", line 20 in <module>

Extension modules: numpy
"""
    contents = scan(tmp_path / "x.log", text, rank=1)
    (error,) = contents.errors
    assert (error.rank, error.signal, error.frames[0].line) == (1, "SIGSEGV", 9)
    (stacks,) = contents.stacks
    assert [thread.main for thread in stacks.threads] == [False, True]


def test_nccl_names_processes_and_init_lines_say_their_ranks(tmp_path: Path) -> None:
    init = "g:{pid}:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - "
    text = "".join(f"{init.format(pid=70 + rank, rank=rank)}Init START\n" for rank in range(4))
    contents = scan(tmp_path / "x.log", text)
    assert contents.processes == {f"g:{70 + rank}": (4, rank) for rank in range(4)}
    assert {fact.fields["phase"] for fact in contents.facts} == {"START"}


def test_repeats_are_counted_and_kinds_are_bounded(tmp_path: Path) -> None:
    same = "g:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n" * 5000
    many = "".join(f"CUDA out of memory. Tried to allocate {size}.00 MiB\n" for size in range(1, 1001))
    contents = scan(tmp_path / "x.log", same + many)
    (transport,) = (fact for fact in contents.facts if fact.kind == "nccl_transport")
    assert transport.fields["count"] == 5000
    assert sum(fact.kind == "cuda_oom" for fact in contents.facts) == 64
    assert contents.dropped == 936


def test_last_error_of_nccl(tmp_path: Path) -> None:
    text = "[rank0]: ncclRemoteError: A call failed possibly due to a network error.\n[rank0]: Last error:\n[rank0]: socketProgress: Connection closed by remote peer g<5>\n"
    facts = {fact.kind: fact for fact in scan(tmp_path / "x.log", text).facts}
    assert facts["nccl_result"].fields["result"] == "ncclRemoteError"
    assert "Connection closed" in facts["nccl_last_error"].fields["error"]


def test_line_numbers_across_blocks_and_lines_of_megabytes(tmp_path: Path) -> None:
    oom = b"CUDA out of memory. Tried to allocate 2.00 GiB"
    text = b"x" * (3 << 20) + b"\n" + (b"step 1 loss 2.0\n" * 200_000) + oom + b"\n" + b"\0" * 5_000_000 + b"\n" + oom
    contents = scan(tmp_path / "x.log", text)
    (fact,) = (fact for fact in contents.facts if fact.kind != "steps")
    assert (fact.line, fact.fields["count"]) == (200_002, 2)


def test_300_000_lines_take_little_work_each(tmp_path: Path) -> None:
    random.seed(1)
    lines = [
        f"[rank{i % 8}]: step {i} loss {random.random():.4f} tokens/s {i * 7} lr 3e-4 memory 12.5 GiB"
        for i in range(300_000)
    ]
    lines[150_000] = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    result, calls = calls_in(lambda: read(path, "x.log", None, Limits(), b""))
    assert [fact.kind for fact in result.facts if fact.kind != "steps"] == ["handled_error"]
    assert [fact.line for fact in result.facts if fact.kind != "steps"] == [150_001]
    assert calls < 100_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "word",
    [
        "NCCL WARN ",
        "last enqueued",
        "EADDRINUSE",
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: ",
    ],
)
def test_a_line_made_to_be_slow_is_not(tmp_path: Path, word: str) -> None:
    evil = (("a:1:2 " * 600) + word + ("[PG 1 Rank " * 400) + "\n") * 200
    scan(tmp_path / "x.log", evil)  # An expression that goes back and forth would not come to its end.


def test_a_stream_that_is_too_long_keeps_what_was_read(tmp_path: Path) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB\n" + "x\n" * 3_000_000
    contents = scan(tmp_path / "x.log", text, limits=Limits(stream_bytes=2 << 20))
    assert len(contents.facts) == 1
    assert "--limit-scale" in contents.problem


def test_an_abort_behind_a_traceback_is_no_part_of_its_message(tmp_path: Path) -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 6, in step', "ValueError: bad batch")
    abort = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc]\n"
    )
    (error,) = scan(tmp_path / "x.log", "\n".join(lines) + "\n" + abort).errors
    assert (error.type, error.message) == ("ValueError", "bad batch")


RAISED = """step 1
Traceback (most recent call last):
  File "train.py", line 5, in main
    x = y[3]
IndexError: list index out of range
"""
STEPS = "".join(f"step {n} loss 2.0\n" for n in range(2, 6))


@pytest.mark.parametrize(
    ("rank", "after", "handled"),
    [
        (0, STEPS, True),
        (None, STEPS, True),
        (None, "step 2 loss 2.0\n" * 4, False),
        (0, "saving\ntraining finished\n", True),
        (None, "saving\ntraining finished\n", True),
        (None, "saving\ntraining finished\ntorchrun --nproc_per_node=4 train.py\n", False),
        (0, "", False),
        (0, "step 2 loss 2.0\n", False),
        (0, STEPS + RAISED.replace("line 5", "line 6"), True),
    ],
)
def test_an_exception_behind_which_the_log_goes_on_was_handled(
    tmp_path: Path, rank: int | None, after: str, handled: bool
) -> None:
    contents = scan(tmp_path / "x.log", RAISED + after, rank)
    facts = [(fact.line, fact.fields["at"], fact.text) for fact in contents.facts if fact.kind == "handled_error"]
    assert facts == ([(5, "train.py:5", "IndexError: list index out of range")] if handled else [])
    lasting = [error.frames[0].line for error in contents.errors]
    assert lasting == ([6] if "line 6" in after else [] if handled else [5])


@pytest.mark.parametrize("after", ["loss 2.0", "WARNING: retrying", "saving to /ckpt", "rank 0 done"])
def test_what_a_log_says_next_is_no_part_of_a_message(tmp_path: Path, after: str) -> None:
    (error,) = scan(tmp_path / "x.log", f"{RAISED}{after}\n").errors
    assert error.message == "list index out of range"


def test_the_lines_that_torch_adds_to_a_message_are_part_of_it(tmp_path: Path) -> None:
    text = RAISED.replace("IndexError: list index out of range", "RuntimeError: Expected to have finished reduction")
    (error,) = scan(tmp_path / "x.log", text + "Parameter indices which did not receive grad for rank 1: 2 3\n").errors
    assert error.message.endswith("for rank 1: 2 3")


def test_torchruns_first_word_on_a_failure_is_enough(tmp_path: Path) -> None:
    contents = scan(
        tmp_path / "x.log", "E1121 failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: /usr/bin/python\n"
    )
    assert [(error.rank, error.signal, error.exit_code) for error in contents.errors] == [(-4, "SIGKILL", -9)]


def test_gloos_abort_is_told_without_its_c_plus_plus(tmp_path: Path) -> None:
    text = (
        "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 12 vs 8. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
    )
    (fact,) = (fact for fact in scan(tmp_path / "x.log", text).facts if fact.kind == "gloo_mismatch")
    assert fact.text == "12 vs 8. Received data size doesn't match expected size"
    assert (fact.fields["received_bytes"], fact.fields["expected_bytes"]) == (12, 8)


HONEST = b"step 1\nCUDA out of memory. Tried to allocate 2.00 GiB.\n"
DAMAGED = None


TRACE = ("Traceback (most recent call last):", '  File "train.py", line 5, in <module>', "    f()", "KeyError: 'x'")


@pytest.mark.parametrize(
    "prefixes",
    [
        ["ERROR 04-15 00:31:11 worker.py:574] "] * 4,
        ["ERROR 04-15 00:31:11 worker.py:574] ", *["ERROR 04-15 00:31:12 worker.py:576] "] * 3],
        ["  0%|          | 0/5 [00:00<?, ?it/s]", "", "", ""],  # Only the first line follows the bar.
        ["(EngineCore_DP1 pid=77) ERROR 10-27 13:45:16 [core.py:710] "] * 4,
        [f"[2026-02-27T21:35:34.{n}Z] fa88a9df || " for n in (100, 20, 301, 4)],
    ],
)
def test_a_traceback_behind_what_a_logger_or_a_bar_puts_in_front(tmp_path: Path, prefixes: list[str]) -> None:
    lines = "".join(f"{prefix}{line}\n" for prefix, line in zip(prefixes, TRACE, strict=True))
    (error,) = scan(tmp_path / "x.log", lines).errors
    assert (error.type, error.message, [frame.line for frame in error.frames]) == ("KeyError", "'x'", [5])


def test_the_same_last_line_of_several_processes_is_one_exception(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", "ValueError: bad shape\n" * 3 + "[rank2]: ValueError: bad shape\n")
    assert [(error.rank, error.message) for error in contents.errors] == [(None, "bad shape"), (2, "bad shape")]


def test_a_last_line_alone_was_handled_where_a_whole_traceback_follows(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", "OSError: no answer, trying again\n" + "\n".join(TRACE) + "\n")
    assert [error.type for error in contents.errors] == ["KeyError"]
    assert [fact.kind for fact in contents.facts] == ["handled_error"]


def test_an_exception_behind_which_any_trainer_tells_more_steps_was_handled(tmp_path: Path) -> None:
    steps = "".join(f"{{'loss': {3 - n / 10}, 'learning_rate': 1e-4, 'epoch': {n / 100}}}\n" for n in range(5))
    contents = scan(tmp_path / "x.log", "\n".join(TRACE) + "\n" + "checking\n" * 200 + steps)
    assert contents.errors == []


CHILD = """\
Traceback (most recent call last):
  File "/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/lib/site-packages/accelerate/commands/launch.py", line 750, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/bin/python', 'train.py']' """


@pytest.mark.parametrize(
    ("text", "signal", "code"),
    [
        (CHILD + "died with <Signals.SIGKILL: 9>.\n", "SIGKILL", None),
        (CHILD + "returned non-zero exit status 1.\n", None, 1),
        (CHILD.replace("accelerate/commands/launch", "deepspeed/launcher/launch") + "died with <Signals.SIGSEGV: 11>.\n",
         "SIGSEGV", None),
    ],
)  # fmt: skip
def test_a_launcher_raises_how_its_child_ended(tmp_path: Path, text: str, signal: str | None, code: int | None) -> None:
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.rank, error.type, error.signal, error.exit_code) == (None, "", signal, code)


def test_a_command_that_the_program_itself_runs_is_its_own_exception(tmp_path: Path) -> None:
    text = CHILD.replace("/lib/site-packages/accelerate/commands/launch.py", "build.py")
    (error,) = scan(tmp_path / "x.log", text + "returned non-zero exit status 1.\n").errors
    assert error.type == "CalledProcessError"


@pytest.mark.parametrize(
    ("command", "types"),
    [
        ("['./configs/run.sh']", ["KeyError", ""]),
        ("['/bin/python', '-u', 'train.py']", ["KeyError", ""]),
        ("['ninja', '-v']", ["KeyError", "CalledProcessError"]),
    ],
)
def test_behind_an_exception_a_command_that_failed_is_the_job_s_own(
    tmp_path: Path, command: str, types: list[str]
) -> None:
    """A job's own launcher repeats how a rank ended; a build of one rank fails on its own."""
    own = CHILD.replace("/lib/site-packages/accelerate/commands/launch.py", "tools/launch.py")
    own = own.replace("['/bin/python', 'train.py']", command) + "returned non-zero exit status 1.\n"
    rank = 'Traceback (most recent call last):\n  File "train.py", line 5, in main\n    x[1]\nKeyError: 1\n'
    assert [error.type for error in scan(tmp_path / "x.log", rank + own).errors] == types


@pytest.mark.parametrize(("code", "signal"), [(247, "SIGKILL"), (245, "SIGSEGV"), (255, None), (137, None)])
def test_a_launcher_that_ends_with_its_childs_negative_code(tmp_path: Path, code: int, signal: str | None) -> None:
    text = f"[ERROR] [launch.py:184:sigkill_handler] ['python3', 'main.py'] exits with return code = {code}\n"
    (error,) = scan(tmp_path / "x.log", text).errors
    assert error.signal == signal


@pytest.mark.parametrize(("last", "rank"), [(0, -1), (3, None)])
def test_deepspeeds_launcher_names_the_process_that_it_started_last(
    tmp_path: Path, last: int, rank: int | None
) -> None:
    line = (
        f"[launch.py:321:sigkill_handler] ['/bin/python', 'main.py', '--local_rank={last}'] exits with return code = -9"
    )
    (error,) = scan(tmp_path / "x.log", f"[2026-01-03 20:31:29,269] [ERROR] {line}\n").errors
    assert (error.rank, error.signal) == (rank, "SIGKILL")


def test_a_driver_that_lost_a_worker_raised_nothing_of_its_own(tmp_path: Path) -> None:
    text = "\n".join((*TRACE[:3], "ray.exceptions.ActorDiedError: The actor died unexpectedly before its task.")) + "\n"
    contents = scan(tmp_path / "x.log", text)
    assert (contents.errors, [fact.kind for fact in contents.facts]) == ([], ["launcher_error"])


def test_a_script_whose_child_failed_raised_nothing_of_its_own(tmp_path: Path) -> None:
    contents = scan(
        tmp_path / "x.log", "\n".join((*TRACE[:3], "RuntimeError: Step 1 exited with non-zero status 3")) + "\n"
    )
    assert [(error.type, error.rank, error.exit_code) for error in contents.errors] == [("", None, 3)]
    assert [fact.kind for fact in contents.facts] == ["launcher_error"]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"step 1 loss 2.0\n" + b"\0" * 4000, True),  # What a node that crashed left of its last block.
        (b"\0" * 4000, False),
        (b"PK\3\4\0\0\x08\0" * 90 + b"\0" * 4000, False),
    ],
)
def test_zeros_behind_a_text(head: bytes, expected: bool) -> None:
    assert recognise(head) is expected


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        ("Killed", "SIGKILL"),
        ("/var/spool/slurm_script: line 28:  8156 Killed                  python3 main.py --epochs 400", "SIGKILL"),
        ("run.sh: line 4: 77 Segmentation fault      (core dumped) python train.py", "SIGSEGV"),
        ("Segmentation fault (core dumped)", "SIGSEGV"),
        ("[1]+  Killed                  python train.py", "SIGKILL"),
        ("[2]  + 8156 killed     python train.py", "SIGKILL"),
        ("zsh: bus error (core dumped)  python train.py", "SIGBUS"),
        ("fish: Job 1, 'python train.py' terminated by signal SIGSEGV (Address boundary error)", "SIGSEGV"),
        ("make: *** [Makefile:7: train] Aborted", "SIGABRT"),
        ("  3%|#   | 40/1000 [01:12<40:00, 1.02 batches/s, loss=2.1]Aborted (core dumped)", "SIGABRT"),
        ("12/500 [==>...................] - ETA: 10:00 - loss: 2.3104Illegal instruction", "SIGILL"),
        ("the transfer was killed", None),
        ("Aborted!", None),
        ("Bus error handler installed", None),
        ("Killed process 8156 (python3)", None),
        ("Killed by the user", None),
        ("12 jobs Killed", None),
    ],
)
def test_what_a_shell_tells_of_a_command_that_a_signal_ended(tmp_path: Path, line: str, signal: str | None) -> None:
    contents = scan(tmp_path / "x.log", f"step 1 loss 2.0\n{line}\n")
    assert [(error.rank, error.signal) for error in contents.errors] == ([(None, signal)] if signal else [])


def test_batches_of_one_epoch_are_progress(tmp_path: Path) -> None:
    batches = "".join(f"Epoch 1 batch {n} loss 2.{n}\n" for n in (30, 40, 50))
    contents = scan(tmp_path / "x.log", "ValueError: could not convert 'n/a'\n" + batches)
    assert (contents.errors, [fact.kind for fact in contents.facts if fact.kind != "steps"]) == ([], ["handled_error"])


def test_a_traceback_in_a_box_of_a_rank_among_others(tmp_path: Path) -> None:
    box = ["╭─ Traceback (most recent call last) ─╮", "│ /w/train.py:9 in main               │", "│ ❱ 9     x = {}['k']                 │",
           "╰─────────────────────────────────────╯", "KeyError: 'k'"]  # fmt: skip
    lines = [f"[rank1]: {line}\n[rank0]: iter 3: loss 2.0, time 1ms\n" for line in box]
    (error,) = scan(tmp_path / "job.log", "".join(lines)).errors
    assert (error.rank, error.type, error.frames) == (1, "KeyError", (Frame("/w/train.py", 9, "main"),))


HYDRA = "{0}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   {1}PID 28 RUNNING AT n7\n=   {2}\n{0}\n"


def hydra(rank: int | None, ended: str) -> str:
    return HYDRA.format("=" * 60, "" if rank is None else f"RANK {rank} ", ended)


@pytest.mark.parametrize(
    ("text", "rank", "signal", "code"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n", 2, "SIGBUS", -7),
        ("ERROR:composer.cli.launcher:Global rank 5 (PID 208865) exited with code -11\n", 5, "SIGSEGV", -11),
        ("x1000c0s0b0n0.hsn.cm: rank 6 died from signal 9\n", 6, "SIGKILL", -9),  # PALS
        ("x1000c0s0b0n0.hsn.cm: rank 4 exited with code 3\n", 4, None, 3),
        ("mpirun noticed that process rank 1 with PID 77 on node g7 exited on signal 9 (Killed).\n", 1, "SIGKILL", -9),
        ("prterun noticed that process rank 3 with PID 7 on node g7 exited on\nsignal 11 (Segmentation fault).\n", 3, "SIGSEGV", -11),
        ("  Process name: [[29973,1],2]\n  Exit code:    3\n", 2, None, 3),
        ("   Process name: [prterun-g7-4711@1,2]\n   Exit code:    3\n", 2, None, 3),
        ("ERROR:  One or more process (first noticed rank 3) terminated with signal 9\n", 3, "SIGKILL", -9),  # jsrun
        ("[rank: 0] Child process with PID 88 terminated with code -9. Forcefully terminating all others\n", -1, "SIGKILL", -9),  # Local.
        (hydra(1, "KILLED BY SIGNAL: 9 (Killed)"), 1, "SIGKILL", -9),
        (hydra(None, "EXIT CODE: 9"), None, "SIGKILL", -9),  # MPICH to 3.2
        (hydra(2, "EXIT CODE: 137"), 2, None, 137),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)\n", None, "SIGBUS", -7),
        (hydra(0, "KILLED BY SIGNAL: 11 (Segmentation fault)") + hydra(1, "KILLED BY SIGNAL: 9 (Killed)"), 0, "SIGSEGV", -11),
    ],
)  # fmt: skip
def test_launchers_that_name_the_rank_that_ended(
    tmp_path: Path, text: str, rank: int | None, signal: str | None, code: int
) -> None:
    (error,) = scan(tmp_path / "x.log", f"step 3 loss 2.1\n{text}").errors
    assert (error.rank, error.signal, error.exit_code) == (rank, signal, code)


def test_lightning_kills_itself_after_a_child_that_failed(tmp_path: Path) -> None:
    child = "[rank: 1] Child process with PID 88 terminated with code {}. Forcefully terminating all other processes\n"
    (error,) = scan(tmp_path / "x.log", f"step 3 loss 2.1\n{child.format(1)}Killed\n").errors
    assert (error.signal, error.exit_code) == (None, 1)
    (error,) = scan(tmp_path / "y.log", f"step 3 loss 2.1\n{child.format(-11)}Killed\n").errors
    assert error.signal == "SIGSEGV"
    (error,) = scan(tmp_path / "z.log", "step 3 loss 2.1\nKilled\n").errors
    assert error.signal == "SIGKILL"


def test_hydra_ends_the_other_ranks_by_sigkill_which_tells_of_none(tmp_path: Path) -> None:
    text = "".join(hydra(rank, "KILLED BY SIGNAL: 9 (Killed)") for rank in range(3))
    assert not scan(tmp_path / "x.log", text).errors


TERMINATED = "terminate called after throwing an instance of '{}'\n  what():  {}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TERMINATED.format("c10::Error", "CUDA error: the launch timed out and was terminated"), "CUDA error: the launch timed out and was terminated"),
        (TERMINATED.format("std::runtime_error", "xrt_client.cc:1110 : Check failed: session->Run()"), "xrt_client.cc:1110 : Check failed: session->Run()"),
        (TERMINATED.format("std::length_error", "vector::_M_default_append"), "vector::_M_default_append"),
        ("terminate called after throwing an instance of 'terminate called after throwing an instance of 'c10::Error\n  what():    what():  shape mismatch\n", "shape mismatch"),
    ],
)  # fmt: skip
def test_the_exception_that_ends_a_process_in_cpp(tmp_path: Path, text: str, message: str) -> None:
    (error,) = scan(tmp_path / "x.log", f"step 3 loss 2.1\n{text}Exception raised from x at y.cpp:1\n").errors
    assert (error.type, error.message) == ("RuntimeError", message)


def test_in_cpp_a_process_ends_of_an_exception_that_python_has_shown(tmp_path: Path) -> None:
    raised = "ValueError: HIP error: no kernel image is available\n\n\n\n\n"
    (error,) = scan(tmp_path / "x.log", raised + TERMINATED.format("c10::Error", "invalid device pointer: 0x5")).errors
    assert error.type == "ValueError"
    timeout = TERMINATED.format("c10::DistBackendError", f"[PG 0 Rank 3] {TIMEOUT.partition('] ')[2]}")
    assert not scan(tmp_path / "x.log", timeout).errors, "the watchdog has lines of its own"
    ends = TERMINATED.format("c10::Error", "CUDA error: driver shutting down")
    assert not scan(tmp_path / "x.log", ends).errors


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (":0:rocdevice.cpp :2984: 15973 us: [pid:40 tid:0x7f] Callback: Queue 0x7ef0 aborting with error : {}",
         "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted to execute an illegal shader instruction. code: 0x2a"),
        ("node7 [stderr] :0:rocdevice.cpp :2673: 63 us: 5999 : [tid:0x7f] Device::callbackQueue aborting with error : {}",
         "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016"),
        ("worker-3: {}",
         "Memory access fault by GPU node-2 (Agent handle: 0x55d0) on address 0x7f34. Reason: Unknown."),
    ],
)  # fmt: skip
def test_the_last_words_of_rocms_runtime(tmp_path: Path, line: str, message: str) -> None:
    (error,) = scan(tmp_path / "x.log", f"step 3 loss 2.1\n{line.format(message)}\n").errors
    assert (error.type, error.message) == ("RuntimeError", message)


@pytest.mark.parametrize(
    ("line", "figure", "value"),
    [
        ("(Worker pid=12) WARN: grad_norm is not finite: nan", "grad_norm", "nan"),
        ("skipped: critic_loss is not finite: inf", "critic_loss", "inf"),
        ("WARNING: non-finite loss, ending training tensor([nan, 0.25], device='cuda:0')", "loss", "nan"),
        ("[titan] INFO - step: 12  loss:      nan  grad_norm:  1.20", "loss", "nan"),
        ("Training epoch 0, iteration 5/99 | global_step: 5 | reduced_train_loss: nan", "reduced_train_loss", "nan"),
        ("step:3 - actor/entropy:0.2 - actor/pg_loss:nan - actor/grad_norm:0.3", "actor/pg_loss", "nan"),
    ],
)
def test_a_trainer_says_that_a_figure_is_not_finite(tmp_path: Path, line: str, figure: str, value: str) -> None:
    (fact,) = [fact for fact in scan(tmp_path / "x.log", f"{line}\n").facts if fact.kind == "non_finite_loss"]
    assert (fact.fields["figure"], fact.fields["value"]) == (figure, value)


@pytest.mark.parametrize(
    "line",
    [
        "LustreError: 11-0: scratch-OST0001-osc: operation ost_read to node 10.0.0.7@o2ib failed: rc = -107",
        "LNetError: 120-3: Refusing connection from 10.0.0.7 for 10.0.0.9@tcp: No matching NI",
    ],
)
def test_a_line_of_the_kernel_is_no_exception(tmp_path: Path, line: str) -> None:
    assert not scan(tmp_path / "x.log", f"step 3 loss 2.1\n{line}\n").errors


def test_a_gradient_norm_of_inf_is_what_loss_scaling_skips(tmp_path: Path) -> None:
    assert not scan(tmp_path / "x.log", "WARN: grad_norm is not finite: inf\n").facts


def test_a_traceback_inside_json_is_read_line_by_line(tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\n  File \"train.py\", line 5, in step\n    f()\nKeyError: 'x'\n"
    record = f'      "py_callstack": {json.dumps(trace)[:-1]}'
    (error,) = scan(tmp_path / "x.log", f'E error_handler:{{\n{record}",\n      "timestamp": "1"\n').errors
    assert (error.type, error.message, error.frames[0].line) == ("KeyError", "'x'", 5)


def test_a_monitored_barrier_says_which_rank_waited_in_it(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check rank 0 logs for faulty rank.\n"
    )
    (error,) = scan(tmp_path / "x.log", text).errors
    assert error.rank == 1


def test_torch_npu_says_which_rank_raised_an_exception(tmp_path: Path) -> None:
    text = (
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2026-05-21-11:57:54 (PID:9270, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\n"
        "EJ0001: Failed to initialize the HCCP process.\n"
    )
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.rank, error.type) == (3, "RuntimeError")


PADDLE = """\
step 4 loss 2.0
--------------------------------------
C++ Traceback (most recent call last):
--------------------------------------
0   paddle::operators::Run(std::string const&)
----------------------
Error Message Summary:
----------------------
FatalError: `{what}` is detected by the operating system.
  [SignalInfo: *** {name} (@0x0) received by PID 77 (TID 0x7f) from PID 0 ***]
"""


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("Segmentation fault", "SIGSEGV"),
        ("Erroneous arithmetic operation", "SIGFPE"),
        ("Access to an undefined portion of a memory object", "SIGBUS"),
        ("Process abort signal", "SIGABRT"),
    ],
)
def test_a_signal_that_paddle_calls_an_error(tmp_path: Path, what: str, name: str) -> None:
    (error,) = scan(tmp_path / "x.log", PADDLE.format(what=what, name=name)).errors
    assert (error.type, error.signal) == ("", name)


CUT_CHILD = "CalledProcessError: Command '['/env/bin/python3', '-u', 'train.py',\n'--steps=5']' {how}.\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CUT_CHILD.format(how="died with <Signals.SIGKILL: 9>"), ("", "SIGKILL", None)),
        (CUT_CHILD.format(how="returned non-zero exit status 3"), ("", None, 3)),
        (
            "CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n",
            ("CalledProcessError", None, None),
        ),
        (
            CUT_CHILD.replace("train.py", "setup.py").format(how="returned non-zero exit status 3"),
            ("CalledProcessError", None, None),
        ),
    ],
)
def test_the_last_line_of_a_launcher_without_its_traceback(
    tmp_path: Path, text: str, expected: tuple[object, ...]
) -> None:
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.type, error.signal, error.exit_code) == expected


def test_an_ide_that_says_by_which_signal_the_program_ended(tmp_path: Path) -> None:
    line = "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)\n"
    assert [error.signal for error in scan(tmp_path / "x.log", line).errors] == ["SIGSEGV"]


def test_the_rank_of_a_logger_names_who_raised_what_others_print_without_it(tmp_path: Path) -> None:
    said = "TooManyRequests: 429 Client Error for url: https://hub.example/x"
    head = "[2026-04-18 15:55:0{}] CRITICAL [job.util:158, rank={}] Uncaught "
    text = f"{said.replace('TooManyRequests', 'HubHTTPError')}\n" + head.format(6, 6) + f"HubHTTPError:{said[16:]}\n"
    assert {error.rank for error in scan(tmp_path / "x.log", text).errors} == {None, 6}


@pytest.mark.parametrize("prefix", ["", "[rank7]: "])
def test_a_traceback_at_the_end_without_its_exception_is_told(tmp_path: Path, prefix: str) -> None:
    cut = "".join(f"{prefix}{line}\n" for line in RAISED.splitlines()[1:-1])
    contents = scan(tmp_path / "x.log", f"step 1\n{cut}")
    ((kind, rank, text),) = [(fact.kind, fact.rank, fact.text) for fact in contents.facts]
    assert (kind, rank) == ("cut_traceback", 7 if prefix else None) and '"train.py", line 5, in main' in text
    assert not contents.errors and not scan(tmp_path / "y.log", RAISED).facts


@pytest.mark.parametrize("launcher", ["torch/distributed/launch.py", "torch/distributed/run.py"])
def test_a_traceback_of_a_launcher_that_is_cut_off_shows_several_processes(tmp_path: Path, launcher: str) -> None:
    raised = RAISED.replace("[rank1]: ", "")
    cut = f'Traceback (most recent call last):\n  File "/env/{launcher}", line 255, in main\n    raise subprocess.'
    contents = scan(tmp_path / "x.log", raised + cut)
    assert [fact.kind for fact in contents.facts] == ["several_processes"] and len(contents.errors) == 1


def test_the_line_of_an_exception_is_its_own_and_not_that_of_the_head(tmp_path: Path) -> None:
    (error,) = scan(tmp_path / "x.log", RAISED).errors
    assert error.line == 5


PORT = "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
LISTED = (
    "train.py FAILED\nFailures:\n[0]:\n  time      : 2031-11-19_08:10:00\n  host      : n1\n  rank      : 1 (local_rank: 1)\n"
    "  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n"
)


@pytest.mark.parametrize(
    "trouble", [PORT, LISTED, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no room\n"]
)
@pytest.mark.parametrize(("steps", "survived"), [(3, True), (1, False)])
def test_what_enough_steps_follow_ended_nothing(tmp_path: Path, trouble: str, steps: int, survived: bool) -> None:
    """The job tried again with another port or batch, or another run was appended to the file."""
    contents = scan(tmp_path / "x.log", trouble + "".join(f"step {n} loss 2.0\n" for n in range(steps)))
    kinds = {fact.kind for fact in contents.facts} - {"steps"}
    assert (not kinds and not contents.errors) == survived


BAR = "Epoch 9: 100%|███| 860/860 [00:05<00:00, 162.25it/s, v_num=1, train_loss_step=1.460]"


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        ("{'train_runtime': 61.2, 'train_loss': 2.0, 'epoch': 3.0}", True),
        ("2031-11-20 INFO: Training complete.", True),
        ("[after training is done] datetime: 2031-11-20", True),
        (
            "[INFO] api.py:966] [default] worker group successfully finished. Waiting 300 seconds for other agents.",
            True,
        ),
        ("I1 0 torch/distributed/elastic/agent/server/api.py:886] Local worker group finished (SUCCEEDED).", True),
        ("2031-11-20 INFO main: Finished Training", True),
        ("Finished training epoch 3", False),
        (f"{BAR}`Trainer.fit` stopped: `max_epochs=10` reached.", True),
        (f"{BAR}\n`Trainer.fit` stopped: `max_epochs=10` reached.\n{BAR}", True),
        ("step 9 loss 2.0", False),
    ],
)
def test_the_end_of_the_training_is_told_unless_steps_follow(tmp_path: Path, line: str, ended: bool) -> None:
    for after, text in (("", ended), ("step 10 loss 2.0\n", False)):
        contents = scan(tmp_path / "x.log", f"step 8 loss 2.0\n{line}\n{after}")
        assert any(fact.kind == "training_ended" for fact in contents.facts) == text


@pytest.mark.parametrize(("remaining", "ended"), [(4, True), (3, False)])
def test_all_processes_that_deepspeed_started_left_in_order(tmp_path: Path, remaining: int, ended: bool) -> None:
    head = "[2031-11-20 09:12:57,512] [INFO] [launch.py:{}] {}\n"
    exits = "".join(head.format("351:main", f"Process {60 + n} exits successfully.") for n in range(remaining))
    contents = scan(tmp_path / "x.log", head.format("253:main", "dist_world_size=4") + "step 1 loss 2.0\n" + exits)
    assert any(fact.kind == "training_ended" for fact in contents.facts) == ended


POD = (
    "    State:          {state}\n      Reason:       {reason}\n      Exit Code:    0\n"
    "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
)


@pytest.mark.parametrize(
    ("state", "reason", "counts"), [("Terminated", "Completed", False), ("Waiting", "CrashLoopBackOff", True)]
)
def test_the_current_state_of_a_pod_decides(tmp_path: Path, state: str, reason: str, counts: bool) -> None:
    contents = scan(tmp_path / "x.log", POD.format(state=state, reason=reason))
    assert any(fact.kind == "kernel_oom" for fact in contents.facts) == counts


def test_torchruns_copy_of_a_traceback_needs_no_head(tmp_path: Path) -> None:
    prefix = "E0422 05:07:49.013000 204 torch/distributed/elastic/multiprocessing/api.py:732] "
    lines = (
        '  File "/x/torch/cuda/__init__.py", line 305, in _lazy_init',
        "    raise RuntimeError(",
        "RuntimeError: no fork",
    )
    (error,) = scan(tmp_path / "x.log", "".join(f"{prefix}{line}\n" for line in lines)).errors
    assert (error.type, error.message, error.frames[0].line) == ("RuntimeError", "no fork", 305)


@pytest.mark.parametrize("amount", ["2097152", "memory allocation of 20971522097152"])
def test_rust_ends_a_process_that_gets_no_memory(tmp_path: Path, amount: str) -> None:
    (tmp_path / "job.log").write_text(f"step 1 loss 2.0\nmemory allocation of {amount} bytes failed\n")
    report = diagnose(tmp_path)
    assert (report.outcome, [root.cause for root in report.root_causes]) == ("oom", ["memory.host"])


@pytest.mark.parametrize(
    ("line", "kind", "survived", "before_the_end"),
    [
        ("srun: error: node01: task 1: Segmentation fault (core dumped)", "srun_task", True, True),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T08:16:45 DUE TO PREEMPTION ***", "job_stopped", True, True),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600035 milliseconds before timing out.", "watchdog_timeout", False, True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_oom", True, True),
        ("h:1:2 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-W to 9637892 bytes, error: No space left on device (28)", "nccl_shm", True, True),
        ("h:1:2 [0] transport/nvls.cc:621 NCCL WARN Cuda failure 1 'invalid argument'", "nccl_warn", True, True),
        ("h:1:2 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000", "nccl_duplicate_gpu", True, True),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable", "system_limit", True, True),
        ("Parameter indices which did not receive grad for rank 3: 444 445", "ddp_unused_indices", True, True),
        ("(raylet) Memory on the node (IP: 10.1.180.84, ID: ba65) where the task (task ID: d221, name=head, pid=4503) was running was 59.84GB / 62.51GB (0.957347), which exceeds the memory usage threshold of 0.95. Ray killed this worker", "kernel_oom", True, True),
        ("Oct 20 08:16:45 n1 kernel: Out of memory: Killed process 4503 (python) total-vm:1kB, anon-rss:1kB", "kernel_oom", True, True),
    ],
)  # fmt: skip
def test_what_a_job_survived_that_went_on_or_ended_in_order(
    tmp_path: Path, line: str, kind: str, survived: bool, before_the_end: bool
) -> None:
    steps = [
        "".join(f"INFO train.py:88: step {n}/90 loss {3 - n / 50:.4f}\n" for n in part)
        for part in (range(40), range(40, 90))
    ]

    def is_fact(text: str) -> bool:
        return kind in {fact.kind for fact in scan(tmp_path / "x.log", text).facts}

    assert is_fact(f"{steps[0]}{line}\n")
    assert is_fact(f"{steps[0]}{line}\n{steps[1]}") != survived
    assert is_fact(f"{steps[0]}{line}\n{steps[1]}Training complete.\n") != before_the_end


@pytest.mark.parametrize("line", ["Fatal Python error: Segmentation fault", "RuntimeError: no fork"])
def test_an_error_that_steps_follow_was_survived(tmp_path: Path, line: str) -> None:
    steps = ["".join(f"step {n}/40 loss {3 - n / 50:.4f}\n" for n in part) for part in (range(9), range(9, 40))]
    assert scan(tmp_path / "x.log", f"{steps[0]}{line}\n").errors
    assert not scan(tmp_path / "x.log", f"{steps[0]}{line}\n{steps[1]}").errors


SIGNALLED = "[n8:{0}:0:{0}] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x{0})\n"


def test_each_process_that_says_it_died_counts(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", "".join(SIGNALLED.format(pid) for pid in (70, 71, 75)))
    assert [(error.signal, error.line) for error in contents.errors] == [("SIGSEGV", 1), ("SIGSEGV", 2), ("SIGSEGV", 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ERROR: saver: process 0 failed: [Errno 5] Input/output error", "[Errno 5] Input/output error"),
        ("[Errno 28] No space left on device: '/ck/model.pt'", "[Errno 28] No space left on device: '/ck/model.pt'"),
        ("2026-01-02 10:00:00 CRITICAL io: write: Errno 122: Disk quota exceeded", "Errno 122: Disk quota exceeded"),
        ("E0102 10:00:00 cannot read shard 3: error: Stale file handle", "Stale file handle"),
        (
            "thread 'main' ERROR cannot flush: Read-only file system (os error 30)",
            "Read-only file system (os error 30)",
        ),
        ("WARNING: [Errno 5] Input/output error, retrying", ""),
        ("[Errno 28] retry 2 of 5: No space left on device", ""),
        ("ERROR: unable to write to file </torch_77_1>: No space left on device (28)", ""),
        ("n8:1:2 [0] NCCL WARN error: /dev/shm/nccl-x: No space left on device (28)", ""),
        ("[ 77.1] kernel: Buffer error on dev sda: Input/output error", ""),
        ("checks of the disk: Input/output error, No space left on device", ""),
    ],
)
def test_an_error_of_the_file_system_in_a_line_of_a_logger(tmp_path: Path, line: str, message: str) -> None:
    rows = [(e.type, e.message) for e in scan(tmp_path / "x.log", f"step 1 loss 2.0\n{line}\n").errors]
    assert rows == ([("OSError", message)] if message else [])


def test_an_error_of_the_file_system_behind_which_the_training_goes_on(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss {2 - n / 100}\n" for n in range(20))
    contents = scan(tmp_path / "x.log", "ERROR: saver: [Errno 5] Input/output error\n" + steps)
    assert (contents.errors, [f.kind for f in contents.facts if f.kind == "handled_error"]) == ([], ["handled_error"])


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.", "kernel_oom"),
        ("n1:4242:4301 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4500> with status=12 opcode=0 len=0 vendor err 129", "nccl_ib_error"),
        ("[Wed Jul  1 10:10:05 2026] NVRM: Xid (PCI:0000:3b:00): 31, pid=991, name=jupyter", "xid"),
    ],
)  # fmt: skip
def test_a_fault_of_the_machine_that_the_job_outlived(tmp_path: Path, line: str, kind: str) -> None:
    def kinds(above: int, below: int) -> set[str]:
        steps = [f"step {n} loss 2.5\n" for n in range(above + below)]
        text = "".join([*steps[:above], f"{line}\n", *steps[above:]])
        return {fact.kind for fact in scan(tmp_path / "x.log", text).facts}

    assert kind not in kinds(30, 10)
    assert kind in kinds(30, 9), "what had been under way may go on for so long"
    assert kind in kinds(0, 30), "a kernel's log may stand in front"


STOP = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-07-01T1{0}:16:44 DUE TO TIME LIMIT ***\n"


def test_of_what_is_said_again_the_last_line_counts(tmp_path: Path) -> None:
    steps = ["".join(f"step {n} loss 2.0\n" for n in range(first, first + 60)) for first in (0, 60)]

    def stops(text: str) -> list[tuple[int, bool]]:
        facts = scan(tmp_path / "x.log", text).facts
        return [(fact.line, "T11:" in fact.text) for fact in facts if fact.kind == "job_stopped"]

    assert stops(steps[0] + STOP.format(0) + steps[1]) == []
    assert stops(steps[0] + STOP.format(0) + steps[1] + STOP.format(1)) == [(122, True)]


STACK = (
    '"py_callstack": "Traceback (most recent call last):\\n  File \\"/opt/torch/x.py\\", line 345, in wrapper\\n    return f()'
    '\\n  File \\"/job/train.py\\", line 9, in main\\n    load()\\n'
)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("between", ["\n    ", " "])
@pytest.mark.parametrize("message", ["KeyError: 'x'", "my.mod.BadShardError: 7"])
def test_a_record_of_torch_s_error_handler(tmp_path: Path, message: str, between: str, is_cut: bool) -> None:
    end = "" if is_cut else f'{message.rpartition(".")[2]}\\n", "timestamp": "1629"}}}}'
    text = f'ERROR:torch.error_handler:{{{between}"message": {{{between}"message": "{message}",{between}"extraInfo": {{{between}{STACK}{end}\n'
    (error,) = scan(tmp_path / "x.log", text).errors
    assert (error.type, error.message) == tuple(message.rpartition(".")[2].split(": "))
    assert [(frame.file, frame.line) for frame in error.frames] == [("/job/train.py", 9), ("/opt/torch/x.py", 345)]


def test_a_message_of_torch_s_error_handler_without_a_stack_is_no_end(tmp_path: Path) -> None:
    assert not scan(tmp_path / "x.log", '    "message": "KeyError: 7",\n    "retries": 3\nstep 1 loss 2\n').errors


LONE = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
WHOLE = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/job/t.py", line 5, in <module>\n[rank0]: ValueError: bad batch\n'


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (LONE.format(1) + WHOLE, {(0, "ValueError"), (1, "OutOfMemoryError")}),
        (WHOLE + LONE.format(1), {(0, "ValueError"), (1, "OutOfMemoryError")}),
        (WHOLE + LONE.format(0), {(0, "ValueError")}),  # Printed and handled.
        (LONE.format(1).removeprefix("[rank1]: ") + WHOLE, {(0, "ValueError")}),  # It may be of the same rank.
        (WHOLE.replace("[rank0]: ", "") + LONE.format(1), {(None, "ValueError")}),
    ],
)
def test_the_last_line_of_another_rank_s_exception_is_an_end_of_its_own(
    tmp_path: Path, text: str, ends: set[tuple[int | None, str]]
) -> None:
    assert {(error.rank, error.type) for error in scan(tmp_path / "x.log", text).errors} == ends
