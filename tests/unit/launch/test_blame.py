"""Who is named, from exit codes and error files as real failures leave them."""

import signal
import socket
from dataclasses import replace

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.evidence.endings import of_error
from diagnostics.evidence.job.run_folder import failure_error
from dtk.launch.blame import find_failure


def error(paths, rank, kind, message, time_s, **more):
    write_json(
        paths.error(0, rank),
        {"rank": rank, "type": kind, "message": message, "file": "/x/train.py", "line": 7, "time_s": time_s, **more},
    )


PEER_CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3911"


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def test_an_exception_is_to_blame_even_when_the_peer_reported_first(paths):
    error(paths, 0, "RuntimeError", PEER_CLOSED, 1.0)
    error(paths, 1, "ValueError", "bad batch", 2.0, region="backward")
    failure, state = find_failure(paths, 0, 3, {0: 1, 1: 1, 2: -signal.SIGTERM})
    assert (failure.rank, state) == (1, "failed")
    assert failure.reason == "ValueError: bad batch (train.py:7)"
    assert failure.region == "backward"
    assert failure.victims == [0, 2]


def test_a_killed_rank_is_to_blame_before_its_peers(paths):
    error(paths, 0, "DistBackendError", PEER_CLOSED, 1.0)
    failure, _ = find_failure(paths, 0, 2, {0: 1, 1: -signal.SIGKILL})
    assert failure.rank == 1
    assert failure.reason.startswith("killed by SIGKILL")


def test_a_peer_that_the_agent_had_to_kill_is_not_to_blame(paths):
    error(paths, 1, "KeyError", "'x'", 5.0)
    failure, _ = find_failure(paths, 0, 2, {0: -signal.SIGKILL, 1: 1})
    assert failure.rank == 1


def test_out_of_memory_is_a_state_of_its_own(paths):
    error(paths, 2, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20 GiB", 1.0)
    assert find_failure(paths, 0, 4, {2: 1})[1] == "oom"
    error(paths, 2, "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", 1.0)
    assert find_failure(paths, 0, 4, {2: 1})[1] == "oom"


def test_a_rank_that_left_only_its_stderr(paths):
    log = paths.logs(0, 1) / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nModuleNotFoundError: No module named 'x'\n\n")
    failure, _ = find_failure(paths, 0, 2, {1: 1})
    assert failure.reason == "exited with code 1: ModuleNotFoundError: No module named 'x'"


@pytest.mark.parametrize("remaining", ["error file", "log", "signal"])
def test_how_it_ended_is_data_from_which_the_diagnosis_reads_the_same(paths, remaining):
    """The launcher writes what `failure_error` reads; neither looks into the sentence."""
    if remaining == "error file":
        error(paths, 1, "ValueError", "bad batch", 2.0)
    if remaining == "log":
        (paths.logs(0, 1)).mkdir(parents=True)
        (paths.logs(0, 1) / "stderr.log").write_text("pkg.OwnError: no batch\n", encoding="utf-8")
    failure, state = find_failure(paths, 0, 2, {1: -signal.SIGKILL if remaining == "signal" else 1})
    expected = {
        "error file": ("raised", "ValueError", "bad batch", None),
        "log": ("raised", "OwnError", "no batch", None),
        "signal": ("killed", "", "", "SIGKILL"),
    }
    assert (failure.kind, failure.type, failure.message, failure.signal) == expected[remaining]
    read = failure_error(Status(state=state, failure=replace(failure, reason="some sentence")))
    assert (read.type, read.signal, read.exit_code) == (failure.type, failure.signal, failure.exit_code)
    assert of_error(read, 1).kind == failure.kind


def test_nothing_is_known(paths):
    assert "could not be started" in find_failure(paths, 0, 2, {})[0].reason


def test_a_damaged_error_file_does_not_hide_the_exit_code(paths):
    paths.error(0, 1).parent.mkdir(parents=True)
    paths.error(0, 1).write_text('{"rank": 1, "typ')
    failure, _ = find_failure(paths, 0, 2, {1: -signal.SIGSEGV})
    assert failure.reason == "killed by SIGSEGV"


def test_a_rank_that_ended_in_order_is_not_said_to_be_killed(paths):
    error(paths, 0, "RuntimeError", PEER_CLOSED, 1.0)
    about = {"step": 4, "region": "end", "time_s": 1.0, "pid": 2**22 + 1, "host": socket.gethostname()}
    write_json(paths.heartbeat(1), {"beat": 1, **about, "beat_end": 1})
    failure, state = find_failure(paths, 0, 2, {0: 1})
    assert (failure.rank, failure.exit_code, failure.victims, state) == (1, 0, [0], "failed")
    assert failure.reason == "it ended with exit code 0 while the others continued"


def test_nobody_is_blamed_for_a_rank_of_another_node_that_left_nothing(paths):
    """Under torchrun no rank learns an exit code, and what became of a process elsewhere cannot be seen."""
    error(paths, 0, "RuntimeError", PEER_CLOSED, 1.0)
    for rank, host in ((0, socket.gethostname()), (1, "node-b"), (2, "node-b")):
        about = {"rank": rank, "step": 3, "region": None, "time_s": 1.0, "pid": 1, "host": host}
        write_json(paths.heartbeat(rank), {"beat": 4, "beat_end": 4, **about})
    failure, state = find_failure(paths, 0, 3, {})
    assert (failure.rank, failure.victims, state) == (-1, [0], "failed")
    assert failure.reason.startswith("ranks 1 and 2 on node-b left no error")
    assert failure_error(Status(state=state, failure=failure)).rank == -1, "the diagnosis takes it for no rank's end"
    error(paths, 2, "KeyError", "'x'", 5.0)
    assert find_failure(paths, 0, 3, {})[0].rank == 2, "an error of its own is to blame, as soon as it is there"
