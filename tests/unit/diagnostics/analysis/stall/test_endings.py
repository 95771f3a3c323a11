"""Who went first, from the words that logs and starts leave: chains of exceptions, gloo's checks, Slurm, NCCL."""
# ruff: noqa: E501  # texts as they are printed, one case a line

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, RankError
from tests.unit.diagnostics.hang.dumps import Job, Op, detect, write as dumps

LISTED = """\
Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    import not_there
ModuleNotFoundError: No module named 'not_there'
W1122 00:05:26.838000 3802 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 3820 closing signal SIGTERM
E1122 00:05:26.961000 3802 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 3821) of binary: /usr/bin/python3.11
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_00:05:26
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {other}
  error_file: <N/A>
  traceback : x
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_00:05:26
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 3821)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
CHAIN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/{first}.py", line 8, in step
[rank1]:     one()
[rank1]: {one}

[rank1]: During handling of the above exception, another exception occurred:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 12, in <module>
[rank1]:     two()
[rank1]: {two}
"""
A2A = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/a2a.py", line 9, in <module>
[rank1]:     dist.all_to_all_single(out, x, output_split_sizes=[2, 2], input_split_sizes=s)
[rank1]: RuntimeError: [enforce fail at /x/third_party/gloo/gloo/alltoallv.cc:138] inLengthPerRank[myRank] == outLengthPerRank[myRank].
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/a2a.py", line 9, in <module>
[rank0]:     dist.all_to_all_single(out, x, output_split_sizes=[2, 2], input_split_sizes=s)
[rank0]: RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21667.
"""


def confirmed(folder: Path, **logs: str) -> list[Finding]:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return [finding for finding in detect(gather(folder, Limits())) if finding.status == "confirmed"]


def test_an_exception_without_a_rank_is_of_the_process_that_torchrun_lists_with_code_1(tmp_path: Path) -> None:
    (finding,) = confirmed(tmp_path, out=LISTED.format(other="-15 (pid: 3820)  (SIGTERM)"))
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.rank_raised", (1,), (0,))
    assert [(place.rank, place.file, place.line) for place in finding.where] == [(1, "/w/train.py", 3)]


@pytest.mark.parametrize(("later_s", "killed"), [(0, True), (31, False)])
def test_a_kill_long_after_another_rank_failed_is_the_launchers(tmp_path: Path, later_s: int, killed: bool) -> None:
    """Torchrun sends SIGKILL 30 s after SIGTERM; which of the ranks that failed was first is not known."""
    text = LISTED[LISTED.index("torch.distributed.elastic") :].format(other="-9 (pid: 3820)")
    (tmp_path / "job.log").write_text(text.replace("05:26", f"05:{26 + later_s}", 1))
    assert [finding.cause for finding in diagnose(tmp_path).root_causes] == ["hang.rank_killed"] * killed


def test_a_sigint_of_one_process_ended_it_and_ctrl_c_ends_no_rank(tmp_path: Path) -> None:
    stack = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 15, in main\n'
        "[rank1]:     step()\n[rank1]: KeyboardInterrupt\n"
    )
    text = stack + LISTED[LISTED.index("W1122") :].format(other="-15 (pid: 3820)  (SIGTERM)")
    text = text.replace("exitcode: 1)", "exitcode: -2)").replace("1 (pid: 3821)", "-2 (pid: 3821)  (SIGINT)")
    (finding,) = confirmed(tmp_path, out=text)
    assert (finding.cause, finding.ranks, finding.where[0].line) == ("hang.rank_killed", (1,), 15)
    assert "SIGINT" in finding.remedies[0].change
    (tmp_path / "out.log").write_text(stack)
    assert [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"] == []


def test_models_that_differ_have_a_remedy_of_their_own(tmp_path: Path) -> None:
    words = (
        "[1]: params[0] in this process with sizes [7, 8] appears not to match sizes of the same param in process 0."
    )
    text = f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 17, in main\n[rank1]:     DDP(model)\n[rank1]: RuntimeError: {words}\n'
    (finding,) = confirmed(tmp_path, out=text)
    assert (finding.cause, finding.where[0].line) == ("hang.rank_raised", 17)
    assert finding.remedies[0].change.startswith("build the same model on every rank before /w/train.py:17")


@pytest.mark.parametrize(
    ("raised", "world", "culprits", "victims"),
    [((1,), 2, (0, 1), ()), ((1, 2), 3, (0,), (1, 2)), ((2,), 4, (2,), ())],
)
def test_whose_model_differs_is_told_by_how_many_raise(
    raised: tuple[int, ...], world: int, culprits: tuple[int, ...], victims: tuple[int, ...]
) -> None:
    words = (
        "[1]: params[0] in this process with sizes [7, 8] appears not to match sizes of the same param in process 0."
    )
    errors = [RankError(rank, "log", 1, "RuntimeError", words) for rank in raised]
    findings = detect(Evidence(Path("nowhere"), Limits(), errors=errors, world_size=world))
    assert [(finding.ranks, finding.victims) for finding in findings if finding.status == "confirmed"] == [
        (culprits, victims)
    ]


@pytest.mark.parametrize(
    ("counts", "world", "culprits", "victims"),
    [((6, 8, 6), 3, (1,), (0, 2)), ((6, 8), 2, (0, 1), ()), ((6, 8, 8), 6, (0, 1, 2), ())],
)
def test_the_numbers_of_parameters_that_ranks_raise_are_a_vote(
    counts: tuple[int, ...], world: int, culprits: tuple[int, ...], victims: tuple[int, ...]
) -> None:
    """Without a majority of all ranks, those that raised are named."""
    errors = []
    for rank, own in enumerate(counts):
        peer = next(number for number, count in enumerate(counts) if count != own)
        text = f"DDP expects same model across all ranks, but Rank {rank} has {own} params, while rank {peer} has inconsistent {counts[peer]} params"
        errors.append(RankError(rank, "log", rank + 1, "RuntimeError", text))
    findings = detect(Evidence(Path("nowhere"), Limits(), errors=errors, world_size=world))
    said = [(finding.ranks, finding.victims) for finding in findings if finding.status == "confirmed"]
    assert said == [(culprits, victims)]


def test_an_exception_that_was_told_before_ended_it_all_the_same(tmp_path: Path) -> None:
    result = 'Traceback (most recent call last):\n  File "/w/train.py", line 33, in {}\n    float(x)\nValueError: abc\n'
    for text in (result.format("main") * 2, result.format("<module>") * 2):
        (tmp_path / "stderr.log").write_text(text)
        assert {error.type for error in gather(tmp_path, Limits()).errors} == {"ValueError"}


def test_of_two_that_ended_with_code_1_none_is_blamed_for_it(tmp_path: Path) -> None:
    findings = confirmed(tmp_path, out=LISTED.format(other="1 (pid: 3820)"))
    assert [finding.ranks for finding in findings] in ([], [()])


@pytest.mark.parametrize(
    ("item", "two", "what", "line"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer",
         "RuntimeError: DataLoader worker (pid 31184) is killed by signal: Killed. ", "DataLoader worker", 12),
        ("KeyError: 'x'", "ValueError: bad batch", "ValueError: bad batch", 12),
        ("RuntimeError: disk quota exceeded", "RuntimeError: [/g/gloo/transport/tcp/pair.cc:553] Connection closed by peer",
         "disk quota exceeded", 8),
        ("ValueError: bad batch", "KeyboardInterrupt", "bad batch", 8),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "ValueError: giving up",
         "out of memory", 8),
    ],
)  # fmt: skip
def test_of_a_chain_the_raised_exception_counts_unless_it_follows_from_the_first(
    tmp_path: Path, item: str, two: str, what: str, line: int
) -> None:
    (finding,) = confirmed(tmp_path, out=CHAIN.format(first="train", one=item, two=two))
    assert finding.ranks == (1,)
    assert what in finding.summary
    assert finding.where[0].line == line


def test_a_killed_worker_of_the_data_loader_has_a_remedy_of_its_own(tmp_path: Path) -> None:
    text = CHAIN.format(
        first="queue", one="OSError: x", two="RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed."
    )
    (finding,) = confirmed(tmp_path, out=text)
    assert "data loader worker at /w/train.py:12" in finding.remedies[0].change
    assert "SIGKILL" in finding.remedies[0].why


def test_what_gloo_says_of_a_ranks_own_arguments_is_no_lost_peer(tmp_path: Path) -> None:
    (finding,) = confirmed(tmp_path, out=A2A)
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.rank_raised", (1,), (0,))
    assert (finding.where[0].file, finding.where[0].line) == ("/w/a2a.py", 9)
    assert "input_split_sizes" in finding.remedies[0].change


def test_a_stopped_job_blames_nobody(tmp_path: Path) -> None:
    text = "".join(
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/w/t.py", line 5, in <module>\n'
        f"[rank{rank}]:     dist.barrier()\n[rank{rank}]: KeyboardInterrupt\n"
        for rank in (0, 1)
    )
    assert not confirmed(tmp_path, out=text)


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("Out Of Memory", "hang.rank_oom"),
        ("Killed", "hang.rank_killed"),
        ("Segmentation fault (core dumped)", "hang.rank_killed"),
        ("Exited with exit code 3", "hang.rank_exited"),
    ],
)
def test_tasks_of_slurm(tmp_path: Path, why: str, cause: str) -> None:
    log = f"step 10 loss 2.1\nsrun: error: node1: task 3: {why}\nsrun: Terminating StepId=124.0\n"
    assert [(finding.cause, finding.ranks) for finding in confirmed(tmp_path, out=log)] == [(cause, (3,))]


def test_a_task_within_which_torchrun_made_ranks_is_no_rank(tmp_path: Path) -> None:
    log = "srun: error: node1: task 3: Out Of Memory\n" + LISTED.format(other="-15 (pid: 3820)  (SIGTERM)")
    assert [finding.ranks for finding in confirmed(tmp_path, out=log)] == [(1,)]


def test_nccl_that_finds_no_memory(tmp_path: Path) -> None:
    log = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 60, in main\n'
        "[rank1]:     dist.all_reduce(t)\n[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/"
        "distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL "
        "version 2.20.5\n[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank1]: Last error:\n"
        "[rank1]: Cuda failure 'out of memory'\n"
    )
    (finding,) = confirmed(tmp_path, out=log)
    assert (finding.cause, finding.ranks) == ("hang.rank_oom", (1,))
    assert "Cuda failure 'out of memory' (train.py:60)" in finding.summary


@pytest.mark.parametrize(
    "entries", [{}, {"a": 1}, "x", [{"collective_seq_id": "nine", "profiling_name": "gloo:barrier"}]]
)
def test_a_dump_that_cannot_be_understood_blames_nobody(tmp_path: Path, entries: Any) -> None:
    dumps(tmp_path, Job({rank: [Op(), Op(size=4)][: 1 if rank == 1 else 2] for rank in range(4)}), form="json")
    (tmp_path / "tr_1").write_text(json.dumps({"version": "2.10", "pg_config": {}, "entries": entries}))
    evidence = gather(tmp_path, Limits())
    assert not [finding for finding in detect(evidence) if finding.status == "confirmed"]
    assert any(problem.file == "tr_1" for problem in evidence.problems)
    assert diagnose(tmp_path).outcome == "undecided"


def start(folder: Path, rank: int, state: str, lasted_s: float, idle_s: float, world_size: int = 2) -> None:
    """As the rank tells it under `dtk watch`."""
    path = folder / "start" / "attempt_0" / f"rank_{rank:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = {"dtk_start": 1, "rank": rank, "world_size": world_size, "attempt": 0, "pid": 100 + rank, "state": state}
    times = {"host": "n", "since_s": 1e9 - lasted_s, "alive_s": 1e9, "worked_s": 1e9 - idle_s}
    path.write_text(json.dumps({**text, **times, "frames": [["/w/train.py", 4 + rank, "setup"]]}))


def test_a_rank_that_never_comes_to_its_group(tmp_path: Path) -> None:
    start(tmp_path, 0, "meets", 40, 40)
    start(tmp_path, 1, "started", 50, 50)
    report = diagnose(tmp_path)
    (root_cause,) = report.root_causes
    assert (report.outcome, root_cause.cause, root_cause.ranks, root_cause.victims) == (
        "hung",
        "hang.rendezvous",
        (1,),
        (0,),
    )
    assert (root_cause.where[0].rank, root_cause.where[0].line) == (1, 5)


@pytest.mark.parametrize(("lasted_s", "idle_s"), [(40, 0.5), (3, 3)])
def test_one_that_works_or_is_hardly_late_is_not_blamed(tmp_path: Path, lasted_s: float, idle_s: float) -> None:
    start(tmp_path, 0, "meets", lasted_s, lasted_s)
    start(tmp_path, 1, "started", 50, idle_s)
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert any(
        finding.finding.cause == "hang.rendezvous" and "rank 1 has not arrived" in text_of(finding.finding).summary
        for finding in report.findings
    )


def test_one_that_left_nothing_is_named_as_missing(tmp_path: Path) -> None:
    start(tmp_path, 0, "meets", 40, 40)
    report = diagnose(tmp_path)
    assert report.outcome == "undecided"
    assert any("Rank 1 left no record" in text_of(finding.finding).summary for finding in report.findings)


def test_a_log_in_utf_16(tmp_path: Path) -> None:
    text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB of which 1 GiB is free.\n"
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / "rank_0.log").write_text(text * 3, encoding=encoding)
        (finding,) = [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"]
        assert (finding.cause, finding.ranks) == ("hang.rank_oom", (0,))


def test_folders_in_the_place_of_dumps_are_told(tmp_path: Path) -> None:
    dumps(tmp_path, Job({rank: [Op()] for rank in range(2)}))
    (tmp_path / "tr_2").mkdir()
    (tmp_path / "more").mkdir()
    problems = {problem.file: problem.what for problem in gather(tmp_path, Limits()).problems}
    assert problems == {"tr_2": "a folder in place of a file"}


OWN = '  File "/w/mine.py", line 9, in forward\n    return self.head(x)\n'
WORKER = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/src/dtk/rank/worker.py", line 68, in work\n'
    '[rank1]:     finished = _train()\n{own}[rank1]:   File "{last}", line 17, in step\n[rank1]:     x.shape\n'
    "[rank1]: AttributeError: 'Output' object has no attribute 'shape'\n"
)


@pytest.mark.parametrize(
    ("own", "last", "says"),
    [
        ("", "/src/dtk/train/loss.py", "check what this run passes to dtk (AttributeError"),
        ("", "/venv/lib/python3.11/site-packages/torch/_tensor.py", "check what this run passes to dtk"),
        (OWN, "/venv/lib/python3.11/site-packages/torch/_tensor.py", "fix the error at /w/mine.py:9"),
        ("", "/w/mine.py", "fix the error at /w/mine.py:17"),
        ("", "/src/dtk/faults/steps.py", "fix the error at /src/dtk/faults/steps.py:17"),
    ],
)
def test_nobody_is_told_to_repair_dtk(tmp_path: Path, own: str, last: str, says: str) -> None:
    prefixed = "".join(f"[rank1]: {line}\n" for line in own.splitlines())
    (finding,) = confirmed(tmp_path, out=WORKER.format(own=prefixed, last=last))
    assert finding.cause == "hang.rank_raised"
    assert finding.remedies[0].change.startswith(says)


def torchrun_list(*codes: int) -> str:
    """The list of torchrun: the exit code of each rank, negative for a signal; `None` for a rank that it does not list."""
    rows = [
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {4000 + rank})"
        for rank, code in enumerate(codes)
    ]
    return "train.py FAILED\nFailures:\n" + "".join(f"[{number}]:\n{row}\n" for number, row in enumerate(rows))


STOPPED, STEPS = -15, [Op(), Op(), Op("barrier")]


@pytest.mark.parametrize("codes", [(3, STOPPED, 3), (STOPPED, 3, STOPPED), (3, 3, 3), (3, STOPPED, STOPPED, STOPPED)])
def test_ranks_that_exit_after_the_same_calls_as_those_that_the_launcher_stopped_left_nobody_waiting(
    tmp_path: Path, codes: tuple[int, ...]
) -> None:
    dumps(tmp_path, Job(dict.fromkeys(range(len(codes)), STEPS), backend="gloo"))
    assert confirmed(tmp_path, out=torchrun_list(*codes)) == []


@pytest.mark.parametrize("codes", [(3, STOPPED, STOPPED), (3, 1, 1), (3, 17, 17), (3, 17, STOPPED)])
def test_a_rank_that_exits_before_a_call_in_which_its_peers_wait_is_at_fault(
    tmp_path: Path, codes: tuple[int, ...]
) -> None:
    dumps(tmp_path, Job({0: STEPS, 1: [*STEPS, Op()], 2: [*STEPS, Op()]}, backend="gloo"))
    (finding,) = confirmed(tmp_path, out=torchrun_list(*codes))
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.rank_exited", (0,), (1, 2))
    assert finding.confidence > 0.9 and "waited for it" in text_of(finding).summary


@pytest.mark.parametrize(
    ("codes", "ranks"),
    [
        ((17, 17, 17, STOPPED), ()),
        ((17, 17, STOPPED, STOPPED), ()),
        ((17, 17, STOPPED, 5), (3,)),
        ((17, 9, 3, 1), None),
    ],
)
def test_ranks_that_exit_alike_while_they_wait_for_another_one_are_not_to_blame(
    tmp_path: Path, codes: tuple[int, ...], ranks: tuple[int, ...] | None
) -> None:
    """As a watchdog of the program's own ends them; rank 3 never came to their call."""
    dumps(tmp_path, Job({rank: [*STEPS, *[Op()] * (rank < 3)] for rank in range(4)}, backend="gloo"))
    exited = [case for case in confirmed(tmp_path, out=torchrun_list(*codes)) if case.cause == "hang.rank_exited"]
    assert ranks is None or [case.ranks for case in exited] == [ranks] * bool(ranks)


@pytest.mark.parametrize(
    ("codes", "ranks"),
    [((3, STOPPED, 3), ()), ((3, 3, 3), ()), ((STOPPED, 3, STOPPED), (1,)), ((3, 4, STOPPED), (0, 1))],
)
def test_a_log_alone_blames_only_the_few_that_exited_and_says_that_the_others_were_stopped(
    tmp_path: Path, codes: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    findings = confirmed(tmp_path, out="step 1 loss 2.0\n" + torchrun_list(*codes))
    assert [finding.ranks for finding in findings] == [ranks] * bool(ranks)
    assert all(finding.confidence < 0.9 and "stopped" in text_of(finding).summary for finding in findings)
