"""`env.container_limits`: a limit that is really reached, and the texts of libraries that reach one."""

import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.patience import stretched

ID = "env.container_limits"
FILES = (
    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\nkept = [open(__file__) for _ in range(9)]\n"
)
THREADS = "OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 64: Resource temporarily unavailable\n"


def test_open_files_that_really_ran_out(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(FILES)
    done = subprocess.run([sys.executable, tmp_path / "load.py"], capture_output=True, text=True, timeout=stretched(60))
    (tmp_path / "rank_3.log").write_text(done.stderr)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (ID, (3,))
    assert "the limit of open files" in text_of(root).summary and "ulimit -n" in text_of(root).remedies[0].change


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        (THREADS, "threads and processes"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable\n", "threads and processes"),
        ("/bin/sh: fork: retry: Resource temporarily unavailable\n", "threads and processes"),
        ("h:1:2 [0] ibvwrap.cc:94 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
         "h:1:2 [0] NCCL INFO transport.cc:33 -> 2\n", "locked memory"),
        ("Libfabric EFA provider has encountered an internal error:\n\nLibfabric error: (-12) Cannot allocate memory\n",
         "locked memory"),
        ("h:1:2 [0] NCCL WARN NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory\n"
         "h:1:2 [0] NCCL INFO include/net.h:23 -> 2\n", "locked memory"),
    ],
)  # fmt: skip
def test_texts_of_libraries(tmp_path: Path, line: str, limit: str) -> None:
    (tmp_path / "train.log").write_text(line)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == ID and limit in text_of(root).summary


IN_PROGRAM = 'Traceback (most recent call last):\n  File "/job/t.py", line 4, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: Resource temporarily unavailable", ID),  # std::thread of torch, through pybind11.
        ("RuntimeError: can't start new thread", ID),
        ("zmq.error.Again: Resource temporarily unavailable", "hang.rank_raised"),
        ("queue.Empty: Resource temporarily unavailable", "hang.rank_raised"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "hang.rank_raised"),
    ],
)
def test_eagain_is_a_limit_only_where_a_thread_or_process_was_created(tmp_path: Path, error: str, cause: str) -> None:
    (tmp_path / "rank_2.log").write_text(f"{IN_PROGRAM}{error}\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (cause, (2,))


@pytest.mark.parametrize(
    ("class_", "is_limit"),
    [("std::system_error", True), ("zmq::error_t", False), ("boost::system::system_error", False)],
)
@pytest.mark.parametrize("prefix", ["", "3: "])
def test_eagain_in_cpp_is_one_only_of_the_standard_library(
    tmp_path: Path, class_: str, is_limit: bool, prefix: str
) -> None:
    lines = (
        f"terminate called after throwing an instance of '{class_}'",
        "  what():  Resource temporarily unavailable",
    )
    (tmp_path / "train.log").write_text("".join(f"{prefix}{line}\n" for line in ("step 1", "step 2", "step 3", *lines)))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause == ID) == is_limit and (is_limit or class_ in text_of(root).summary)


@pytest.mark.parametrize(
    ("file", "function", "is_limit"),
    [
        ("/usr/lib/python3.11/multiprocessing/popen_fork.py", "_launch", True),
        ("/usr/lib/python3.11/subprocess.py", "_execute_child", True),
        ("/usr/lib/python3.11/socket.py", "recv_into", False),
    ],
)
def test_eagain_of_a_fork_is_one(tmp_path: Path, file: str, function: str, is_limit: bool) -> None:
    frame = f'  File "{file}", line 66, in {function}\n    call()\n'
    error = "BlockingIOError: [Errno 11] Resource temporarily unavailable\n"
    (tmp_path / "rank_2.log").write_text(f"{IN_PROGRAM}{frame}{error}")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [ID if is_limit else "hang.rank_raised"]


SHARED = "RuntimeError: unable to open shared memory object </torch_4711_22> in read-write mode"


@pytest.mark.parametrize(
    ("reason", "sure"), [("", 0.75), (": Too many open files (24)", 0.97), (": No such file or directory (2)", None)]
)
def test_a_shared_tensor_that_could_not_be_opened(tmp_path: Path, reason: str, sure: float | None) -> None:
    (tmp_path / "rank_1.log").write_text(f"{SHARED}{reason}\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (ID if sure else "hang.rank_raised", (1,))
    assert not sure or (root.confidence == sure and "open files" in text_of(root).summary)


@pytest.mark.parametrize(("call", "sure"), [("reg_mr_iova2", 0.97), ("create_cq", 0.75), ("create_qp", 0.75)])
def test_queues_of_the_network_device_may_be_used_up_as_well(tmp_path: Path, call: str, sure: float) -> None:
    failed = f"h:1:2 [0] ibvwrap.cc:94 NCCL WARN Call to ibv_{call} failed with error Cannot allocate memory\n"
    (tmp_path / "train.log").write_text(failed + "h:1:2 [0] NCCL INFO transport.cc:33 -> 2\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.confidence) == (ID, sure)
    assert ("as many queues as it can" in text_of(root).summary) == (sure < 0.97)
