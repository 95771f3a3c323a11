"""A rank raised an exception of its own; its peers lost their connections to it."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose

CAUSE = "hang.rank_raised"
LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41423"


def traceback(rank: int, error: str, line: str = '"/job/train.py", line 12, in train') -> str:
    rows = ("Traceback (most recent call last):", f"  File {line}", "    step()", error)
    return "".join(f"[rank{rank}]: {row}\n" for row in rows)


def of(folder: Path, log: str) -> tuple[Finding, list[str]]:
    (folder / "job.log").write_text("step 1 loss 2.0\n" + log)
    report = diagnose(folder)
    return next(finding.finding for finding in report.findings if finding.finding.cause == CAUSE), [
        root.cause for root in report.root_causes
    ]


def test_the_rank_with_an_error_of_its_own_is_named_and_its_peers_are_victims(tmp_path: Path) -> None:
    own = traceback(1, "ValueError: bad batch", '"/job/data.py", line 44, in load')
    result, roots = of(tmp_path, traceback(0, LOST) + own + traceback(2, LOST))
    assert (result.status, result.ranks, result.victims, roots) == ("confirmed", (1,), (0, 2), [CAUSE])
    text = text_of(result)
    assert text.summary.startswith("Rank 1 raised ValueError: bad batch (data.py:44).")
    assert text.remedies[0].change.startswith("fix the error at /job/data.py:44")


@pytest.mark.parametrize(
    ("error", "change"),
    [
        ("OSError: [Errno 28] No space left on device", "free space where the file is written"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "install the package in the environment of every node"),
        (
            "ImportError: cannot import name 'a' from partially initialized module 'm' (a circular import)",
            "look for modules that import each other",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "look for an index out of range"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "run it once with CUDA_LAUNCH_BLOCKING=1"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED", "leave memory free on the device"),
        ("ValueError: host not found: Name or service not known", "use a name that every node can resolve"),
    ],
)
def test_a_known_error_has_a_remedy_of_its_own(tmp_path: Path, error: str, change: str) -> None:
    result, _ = of(tmp_path, traceback(1, error) + traceback(0, LOST))
    assert result.ranks == (1,) and text_of(result).remedies[0].change.startswith(change)


def test_only_lost_connections_do_not_show_which_rank_raised(tmp_path: Path) -> None:
    result, roots = of(tmp_path, traceback(0, LOST) + traceback(1, LOST))
    assert (result.status, roots) == ("undecided", []) and text_of(result).missing


def test_a_rank_that_was_killed_did_not_raise(tmp_path: Path) -> None:
    result, roots = of(tmp_path, "srun: error: node1: task 1: Killed\n" + traceback(0, LOST))
    assert (result.status, roots) == ("ruled_out", ["hang.rank_killed"])


ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [14,0,0], thread: [{n},0,0] Assertion "
    '`-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
)
WATCHDOG = (
    "[rank1]:[E606 15:20:10.3 ProcessGroupNCCL.cpp:1595] [PG ID 4 PG GUID 10 Rank 1] Process group watchdog thread "
    "terminated with exception: CUDA error: device-side assert triggered\n"
)
FAULT = (
    "Memory access fault by GPU node-4 (Agent handle: 0x8a1f) on address 0x14a8. Reason: Page not present.\n"
    "srun: error: node12: task 0: Aborted\n"
)


@pytest.mark.parametrize(
    ("log", "ranks", "change"),
    [
        ("".join(ASSERTION.format(n=n) for n in range(9)), (), "an index out of range"),
        (ASSERTION.format(n=1) + WATCHDOG, (1,), "an index out of range"),
        ("iter 10: loss 3.2\n" + FAULT, (), "AMD_SERIALIZE_KERNEL"),
    ],
)
def test_a_kernel_that_failed_without_an_exception(
    tmp_path: Path, log: str, ranks: tuple[int, ...], change: str
) -> None:
    raised, roots = of(tmp_path, log)
    assert roots[0] == "hang.rank_raised" and raised.ranks == ranks
    assert change in text_of(raised).remedies[0].change


def test_a_worker_of_the_data_loader_that_left_the_queue_empty(tmp_path: Path) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/multiprocessing/queues.py", line 108, in get\n    raise Empty\n'
        "_queue.Empty\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "tools/train.py", line 150, in <module>\n    main(args)\n'
        '  File "/x/torch/utils/data/dataloader.py", line 1003, in _try_get_data\n    raise RuntimeError(\n'
        "RuntimeError: DataLoader worker (pid(s) 101, 47) exited unexpectedly\n"
    )
    text = text_of(of(tmp_path, log)[0])
    assert "raised RuntimeError: DataLoader worker" in text.summary and "Empty" not in text.summary
    assert "dmesg names it if host memory ran out" in text.remedies[0].change


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ("train.py: error: unrecognized arguments: --local-rank=0", "LOCAL_RANK"),
        ("train.py: error: the following arguments are required: --data", "--help"),
        ("Error: No such option: --lr", "--help"),
    ],
)
def test_options_that_the_program_does_not_know(tmp_path, options, change):
    failed = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 2) local_rank: 0 (pid: 9) of: p\n"
    (tmp_path / "train.log").write_text(f"usage: train.py [-h]\n{options}\n{failed}")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("hang.rank_raised", ())
    assert change in text_of(root).remedies[0].change


def test_an_error_of_slurm_is_none_of_the_program_s_options(tmp_path):
    (tmp_path / "train.log").write_text("srun: error: argument list of the step is too long\n")
    assert diagnose(tmp_path).root_causes == ()


def test_a_message_whose_first_line_announces_the_second(tmp_path):
    (tmp_path / "train.log").write_text(
        '  File "/x/transformers/utils/import_utils.py", line 1969, in _get_module\n    raise RuntimeError(\n'
        "RuntimeError: Failed to import a.b because of the following error (look up to see its traceback):\n"
        "/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E\n\nJob failed\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert "undefined symbol" in text_of(root).summary
    assert "reinstall" in text_of(root).remedies[0].change


def test_what_nccl_raises_after_its_own_check_of_the_calls_is_no_error_of_the_rank(tmp_path):
    (tmp_path / "train.log").write_text(
        "n:1:1 [3] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at "
        'and around rank 39.\nTraceback (most recent call last):\n  File "m.py", line 3, in train\n    a()\n'
        "RuntimeError: NCCL error in: /x/c10d/ProcessGroupNCCL.cpp:492, invalid usage, NCCL version 2.4.8\n"
    )
    report = diagnose(tmp_path)
    assert report.root_causes == ()
    assert {"hang.collective_mismatch", "hang.signature_mismatch"} <= {
        suspicion.cause for suspicion in report.suspicions
    }


def test_an_exit_code_after_a_loss_that_is_not_finite_is_no_exception(tmp_path):
    stops = (
        "E1123 10:00:12.4 311 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0"
    )
    result, roots = of(
        tmp_path, f"step 2 loss nan\nLoss is nan, stopping training\n{stops} (pid: 4101) of binary: py\n"
    )
    assert result.status == "undecided" and roots == ["numeric.non_finite"]


def test_the_only_exception_and_the_only_exit_code_are_of_one_process(tmp_path):
    stops = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: 4101)\n"
    raised = traceback(0, "ValueError: bad batch").replace("[rank0]: ", "")
    assert of(tmp_path, raised + stops)[0].ranks == (), "it may be of any node"
    stops = f"  max_nodes            : 1\n{stops}"
    assert of(tmp_path, raised + stops)[0].ranks == (2,)
    assert of(tmp_path, raised + stops + stops.replace("local_rank: 2", "local_rank: 1"))[0].ranks == ()


LISTED = """  File "/x/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2031-01-14_07:09:25
  host      : n1
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 2353)
  error_file: <N/A>
"""


@pytest.mark.parametrize(("before", "roots"), [("", []), ("preparing\n" * 30, [CAUSE])])
def test_an_exit_code_below_which_the_programs_own_lines_are_missing(
    tmp_path: Path, before: str, roots: list[str]
) -> None:
    (tmp_path / "job.log").write_text(before + LISTED)
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == roots
    assert roots or (report.waiting is not None and report.waiting.failed_silently == (3,))


THC = "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCStorage.cpp line=27 error={}\n"
CUT = 'Traceback (most recent call last):\n  File "/job/train.py", line 163, in train\n'
STEPS = "".join(f"step {n} loss {3 - n / 100:.2f}\n" for n in range(2, 20))


@pytest.mark.parametrize(
    ("log", "raised"),
    [
        (THC.format("4 : unspecified launch failure") + CUT, True),
        (THC.format("4 : unspecified launch failure") + STEPS, False),
        (THC.format("2 : out of memory") + "skipped a batch that did not fit\n", False),
    ],
)
def test_what_torch_says_in_front_of_an_exception_that_is_cut(tmp_path: Path, log: str, raised: bool) -> None:
    result, roots = of(tmp_path, log)
    assert roots == ([CAUSE] if raised else [])
    assert not raised or "unspecified launch failure" in text_of(result).summary


ROOT = (
    "train.py FAILED\nFailures:\n[1]:\n  time      : 2026-03-14_09:20:31\n  host      : node1\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 4713)\n  error_file: <N/A>\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-14_09:20:31\n  host      : node1\n"
    "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 4711)\n  error_file: <N/A>\n"
)
TIMED_OUT = "".join(
    f"[rank{rank}]:[E0314 09:20:30.1{rank} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=101, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for "
    "600012 milliseconds before timing out.\n"
    for rank in (0, 2, 3)
)


def test_an_exception_above_the_timeouts_of_others_is_older_than_the_end_of_its_process(tmp_path: Path) -> None:
    own = traceback(1, "KeyError: 'labels'")
    result, roots = of(tmp_path, own + TIMED_OUT + ROOT)
    assert (result.ranks, roots) == ((1,), [CAUSE])
    assert of(tmp_path, TIMED_OUT + own + ROOT)[1] == []
    of_waiting = TIMED_OUT.splitlines(keepends=True)[0].replace("ank0", "ank1").replace("Rank 0", "Rank 1")
    assert of(tmp_path, of_waiting + own + TIMED_OUT + ROOT)[1] == []


OTHERS = ["TimeoutError: rank 2 did not report within 600 s", "RuntimeError: another rank reported a failure, aborting"]


@pytest.mark.parametrize("effect", OTHERS)
@pytest.mark.parametrize("first", [True, False])
def test_what_tells_that_another_rank_failed_is_an_effect_of_that_ranks_own_error(
    tmp_path: Path, effect: str, first: bool
) -> None:
    own, effects = traceback(2, "KeyError: 'labels'"), traceback(0, effect)
    result, roots = of(tmp_path, own + effects if first else effects + own)
    assert (result.ranks, roots) == ((2,), [CAUSE])


@pytest.mark.parametrize(
    ("effect", "ranks"),
    [
        (OTHERS[0].replace("rank 2", "rank 3"), (0, 2)),  # Another one than the one that raised.
        (OTHERS[0].replace("rank 2", "rank 0"), (0, 2)),  # Of itself.
        ("ValueError: rank 2 is not a power of the other ranks", (0, 2)),
    ],
)
def test_unless_that_rank_did_not_raise(tmp_path: Path, effect: str, ranks: tuple[int, ...]) -> None:
    assert of(tmp_path, traceback(0, effect) + traceback(2, "KeyError: 'labels'"))[0].ranks == ranks
    assert of(tmp_path, traceback(0, effect) + traceback(1, LOST))[0].ranks == (0,)  # All that is known.


@pytest.mark.parametrize(("said", "ranks"), [("[Rank:3] FATAL ERROR :: MODULE:PT x", (3,)), ("[Rank:3] done x", ())])
def test_the_rank_in_the_message_of_an_error_of_habana(tmp_path: Path, said: str, ranks: tuple[int, ...]) -> None:
    (tmp_path / "job.log").write_text(
        f"terminate called after throwing an instance of 'c10::Error'\n  what():  {said}\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("hang.rank_raised", ranks)
