"""The first screen of a log that decides nothing: who waits, who is silent, what is likely, what would decide it."""

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from diagnostics.analysis.symptoms.state import Symptoms, Waiting
from diagnostics.diagnose import diagnose
from diagnostics.evidence.readers.process import Moment
from diagnostics.report import html, jsonform, markdown, terminal
from diagnostics.report.diagnosis import document
from diagnostics.report.symptoms import headline, needed
from tests.unit.diagnostics.analysis.divergence.test_from_watchdogs import hung, in_group
from tests.unit.diagnostics.hang.dumps import Job, Op, write
from tests.unit.diagnostics.report.test_jsonform import SCHEMA

LOG = in_group(0, "15", 0, seq=434159, numel=2) + in_group(2, "15", 2, seq=434159, numel=2)


def lines(folder: Path, text: str) -> list[str]:
    (folder / "job.log").write_text(text)
    return [line.rstrip() for line in rendered(folder)]


def rendered(folder: Path) -> list[str]:
    return terminal.render(document(diagnose(folder), brief=True), columns=None, colour=False).splitlines()


def test_dumps_without_a_cause_show_who_waits_in_what(tmp_path: Path) -> None:
    step, message = Op(line=12), Op("send", 8, 30, "1", peer=1)
    programs = {0: [step, message], 1: [step], 2: [step, step], 3: [step, step]}
    write(tmp_path, Job(programs, {"1": [0, 1]}, descriptions={"1": "pp"}), without=(1,))
    head, *waits, needed = [line.rstrip() for line in rendered(tmp_path)][:4]
    assert head.startswith("UNDECIDED: Ranks 0, 2 and 3 wait for rank 1, which left no readable dump")
    assert waits == [
        "waits   ranks 2 and 3: all_reduce at train.py:12, #2, group default_pg (4 ranks)",
        "waits   rank 0: send at train.py:30, group pp",
    ]
    assert needed.startswith("needed  the dump, stack or log of rank 1")
    assert "all_reduce at train.py:12, #2" in html.render(document(diagnose(tmp_path), page=True))


def test_the_first_screen_is_an_answer(tmp_path: Path) -> None:
    shown = lines(tmp_path, LOG)
    assert shown[0] == "UNDECIDED: ranks 0 and 2 wait in all_reduce of 2 elements; no cause is confirmed"
    assert shown[1] == "waits   ranks 0 and 2: all_reduce of 2 elements, #434,159, group 15, for 600 s since 09:50:00"
    maybe = [line for line in shown if line.startswith("maybe")]
    assert 1 <= len(maybe) <= 3 and "only some ranks issued a collective [hang.conditional_collective]: " in maybe[1]
    (decide,) = (line for line in shown if line.startswith("needed"))
    assert "py-spy dump" in decide
    assert not any("record.level" in line or "ProcessGroupNCCL" in line for line in shown)


def test_ranks_that_left_no_line_are_named(tmp_path: Path) -> None:
    text = hung(1, op="_ALLGATHER_BASE").replace("NumelOut=1024", "NumelOut=4096")
    assert "silent  ranks 0, 2 and 3 logged nothing relevant" in lines(tmp_path, text)


def test_an_abort_without_a_word_asks_for_its_stderr(tmp_path: Path) -> None:
    failed = "E1 torch/x/api.py:874] failed (exitcode: -6) local_rank: 1 (pid: 57) of binary: python\n"
    assert lines(tmp_path, failed)[0] == "UNDECIDED: an unidentified rank aborted, and no line shows the cause"
    shown = lines(tmp_path, f"max_nodes : 1\n{failed}")
    assert shown[0] == "UNDECIDED: rank 1 aborted, and no line shows the cause"
    assert any(line.startswith("needed  the stderr of rank 1") for line in shown)


def test_every_form_has_it(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LOG)
    report = diagnose(tmp_path)
    value = jsonform.as_json(report)
    jsonschema.validate(value, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert (
        [suspicion["cause"] for suspicion in value["suspicions"]]
        == [suspicion.cause for suspicion in report.suspicions]
        != []
    )
    assert value["measures"]["waiting"]["waits"][0]["ranks"] == [0, 2]
    for text in (markdown.render(document(report)), html.render(document(report))):
        assert "hang.conditional_collective" in text and "a metric, a flag or a barrier" in text


@pytest.mark.parametrize("text", [LOG + "[rank1]: MemoryError\n", hung(0) + hung(1, op="BROADCAST") + hung(2)])
def test_a_report_with_a_cause_has_no_suspicions(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    report = diagnose(tmp_path)
    assert bool(report.root_causes) != bool(report.suspicions)


ID = (
    "[2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', "
    "but store->get('0') got error: Socket Timeout\n"
)


@pytest.mark.parametrize("head", ["", "RuntimeError: ", "RuntimeErrorRuntimeErrorRuntimeError: "])
def test_the_rank_that_did_not_come_to_the_first_collective_is_named(tmp_path: Path, head: str) -> None:
    shown = lines(tmp_path, head + ID)
    assert shown[0] == "UNDECIDED: rank 0 did not reach the set-up of a group's communicator; no cause is confirmed"
    assert any(line.startswith("maybe") and "[hang.host_stall], rank 0: " in line for line in shown)


def test_counters_without_the_call_that_timed_out(tmp_path: Path) -> None:
    head = "[rank5]:[E1026 04:01:29.0 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump"
    text = f"{head} signal due to a collective timeout. Last enqueued NCCL work: 90, last completed NCCL work: 77.\n"
    assert lines(tmp_path, text)[0].startswith(
        "UNDECIDED: a collective timed out, and rank 5 had 13 collectives that did not complete"
    )


CLOSED = "n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<51159>\n"


def test_a_connection_that_a_peer_closed_accuses_no_network(tmp_path: Path) -> None:
    maybe = [line for line in lines(tmp_path, CLOSED) if line.startswith("maybe")]
    assert "[hang.rank_raised]" in maybe[0] and "[hang.rank_killed]" in maybe[1]


@pytest.mark.parametrize(
    ("text", "headline", "decide"),
    [
        ("n1:1:2 [0] transport.cc:1 NCCL WARN Cuda failure 'invalid argument'\n", "NCCL warned: Cuda", "P2P_DISABLE"),
        ("[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL "
         "version 2.26.2\n[rank0]: Last error:\n[rank0]: Cuda failure 1 'invalid argument'\n",
         "NCCL failed on rank 0 (Cuda failure 1", "P2P_DISABLE"),
        ("[rank6]:[E1 ProcessGroupNCCL.cpp:698] [Rank 6] To avoid data inconsistency, we are taking the entire process "
         "down.\n", "torch's watchdog ended the process", "the stderr of every rank"),
        ("[E ProcessGroupNCCL.cpp:325] Some NCCL operations have failed or timed out. To avoid this\n",
         "torch's watchdog ended the process", "the stderr of every rank"),
        ('n1:1:2 [0] init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line\n', "NCCL warned: Missing",
         "boot the node with iommu=pt"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1275, internal error, NCCL version 2.14.3\n"
         "Last error:\nNet : Call to recv from 10.58.226.18<38309> failed : Connection refused\n",
         "NCCL failed (Net : Call", "nc -vz"),
        ("[rank5]: RuntimeError: DDP expects same model across all ranks, but Rank 5 has 8 params, while rank 0 has "
         "inconsistent 0 params.\n", "NCCL failed on rank 5 (Rank 5 has 8 params, while rank 0", "NCCL_P2P_DISABLE=1"),
        ("[rank5]: RuntimeError: DDP expects same model across all ranks, but Rank 5 has 8 params, while rank 0 has "
         "inconsistent 1065353216 params.\n", "the calls of two ranks do not match (Rank 5 has 8 params, while",
         "TORCH_FR_BUFFER_SIZE"),
        ("n1:1:2 [0] include/socket.h:344 WARN Socket creation failed : Address family not supported by protocol\n",
         "NCCL warned: Socket creation failed", "ip -br address"),
        ("n8:1:2 [0] shm.h:27 NCCL WARN Call to shm_open failed : Permission denied\n", "NCCL warned: Call to shm_open",
         "ls -ld /dev/shm"),
        ("[trainer0|0]:ncclInternalError: Internal check failed.\n[trainer0|0]:Last error:\n[trainer0|0]:"
         "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)\n",
         "NCCL failed on rank 0 (ncclSocketInit", "ip -br address"),
        ("n1:1:2 [5] x:9 NCCL WARN NET/OFI Request 0x7 completed with error. RC: 20. Error: unknown error.\n",
         "NCCL warned: NET/OFI Request", "security group"),
        ("n1:1:2 [0] x:9 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
         "NCCL warned: NET/OFI OFI fi_getinfo", "fi_info -p efa"),
        ("[rank2]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
         "n1:1:2 [0] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument\n",
         "NCCL failed on rank 2", "NCCL_NET_GDR_LEVEL=LOC"),
        ("W1 torch/x/api.py:739] Received 2 death signal, shutting down workers\n", "The job was inter", "py-spy dump"),
        ("NVRM: Xid (PCI:0000:3d:00): 43, pid=7, Ch 8\n", "GPU fault: a kernel was", "compute-sanitizer"),
    ],
)  # fmt: skip
def test_what_a_line_speaks_of_is_the_headline_and_what_decides_it(
    tmp_path: Path, text: str, headline: str, decide: str
) -> None:
    shown = lines(tmp_path, text)
    assert shown[0].startswith(f"UNDECIDED: {headline}")
    assert any(line.startswith("needed") and decide in line for line in shown)


def test_the_stderr_that_is_needed_is_that_of_the_rank_that_failed_even_if_no_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("$ torchrun train.py\n")
    report = diagnose(tmp_path)
    aborted = replace(Symptoms((), (), (), (), frozenset()), aborted=(3,))
    assert needed(report, aborted).startswith("the stderr of rank 3, which")
    assert needed(report, replace(aborted, aborted=(-1,))).startswith("the stderr of the rank that failed, which")


def test_a_wait_in_an_unknown_call_and_a_failure_of_which_no_line_tells() -> None:
    nothing = Symptoms((), (), (), (), frozenset({"watchdog_status"}))
    waits = replace(nothing, waits=(Waiting((0, 1), ""),))
    assert headline(waits) == "ranks 0 and 1 wait in a collective; no cause is confirmed"
    assert headline(nothing).startswith("the log shows a failure")
    assert "exit code 1" in headline(replace(nothing, has_unnamed_exit=True))


def gave_up(rank: int, line: int, function: str = "all_reduce") -> str:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "/job/train.py", line {line}, in step\n    dist.{function}(x)\n'
        f'  File "/lib/torch/distributed/distributed_c10d.py", line 2, in {function}\n    work.wait()\n'
        "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to "
        "complete\n"
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


LISTED = "  rank      : 3 (local_rank: 3)\n  exitcode  : -15 (pid: 13)\n  traceback : Signal 15 (SIGTERM) received\n"


def test_ranks_that_gave_up_at_different_lines_are_told_with_them(tmp_path: Path) -> None:
    shown = lines(tmp_path, gave_up(0, 30, "barrier") + "".join(gave_up(rank, 12) for rank in (1, 2, 3)) + LISTED)
    waits = "ranks 1-3 wait in all_reduce at train.py:12, rank 0 waits in barrier at train.py:30"
    assert shown[0] == f"UNDECIDED: {waits}; no cause is confirmed"
    maybe = [line for line in shown if line.startswith("maybe")]
    assert ", rank 0: rank 0 waits in a different call than the others" in maybe[0]
    assert all(", rank 0: for the same reasons" in line for line in maybe[1:])
    assert not any(line.startswith("silent") for line in shown)


def test_the_rank_that_gave_up_on_no_call_is_suspected(tmp_path: Path) -> None:
    shown = lines(tmp_path, "".join(gave_up(rank, 12) for rank in (0, 1, 2)) + LISTED)
    assert any("[hang.host_stall], rank 3: no line shows rank 3 waiting in a collective" in line for line in shown)


def test_who_did_not_come_is_told_before_a_wait_without_a_rank(tmp_path: Path) -> None:
    shown = lines(
        tmp_path,
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n"
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation "
        "to complete\n",
    )
    assert shown[0].startswith("UNDECIDED: rank 1 did not reach a monitored barrier")


def test_ranks_whose_watchdog_stood_still_are_named(tmp_path: Path) -> None:
    stuck = "[rank{}]:[E704 13:48:58.2 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {}] "
    stuck += (
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring collectives.\n"
    )
    assert "in a CUDA call on ranks 0 and 2; " in lines(tmp_path, stuck.format(0, 0) + stuck.format(2, 2))[0]


def test_what_the_headline_says_of_a_failure_is_not_noted_again(tmp_path: Path) -> None:
    failed = "[rank5]:[E207 19:37:09.9 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group "
    failed += (
        "watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, "
    )
    failed += "NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error.\n"
    shown = lines(tmp_path, failed)
    assert shown[0].startswith("UNDECIDED: NCCL failed on rank 5")
    assert len([item for item in shown if item.startswith("note")]) == 1
    assert "a rank raised an exception" in shown[1]


def test_a_position_alone_supports_no_cause(tmp_path: Path) -> None:
    alone = (
        "[rank3]:[E1129 11:56:57.6 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0(default_pg) Rank 3] Timeout at NCCL "
    )
    alone += "work: 28956, last enqueued NCCL work: 28956, last completed NCCL work: 28955.\n"
    shown = lines(tmp_path, alone)
    assert not [line for line in shown if line.startswith("maybe")]
    assert any(line.startswith("needed") and "TORCH_FR_BUFFER_SIZE" in line for line in shown)


def look(folder: Path, rank: int, stack: str, *, moves: bool = False) -> None:
    """Write what `dtk attach` collects of one rank over three looks, 8 s apart."""
    times = [1e9 + 8 * number for number in range(3)]
    moments = [list(Moment(time, "S", 0.0, number * moves, "futex_do_wait")) for number, time in enumerate(times)]
    record = {"dtk_process": 1, "rank": rank, "world_size": 3, "looks": [[moment, moment] for moment in moments]}
    record |= {"last": moments[-1], "call": {"op": "x", "group": "other"}}
    dumps = "".join(f'# stacks at {time} s since 1970\nThread 7 (idle): "MainThread"\n{stack}\n' for time in times)
    for kind, suffix, text in (("process", "json", json.dumps(record)), ("stacks", "txt", dumps)):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / f"rank_{rank:05d}.{suffix}").write_text(text)


C10D = "/site-packages/torch/distributed/distributed_c10d.py"


def test_where_the_ranks_of_a_running_job_stand(tmp_path: Path) -> None:
    for rank in (1, 2):
        look(tmp_path, rank, f"    all_reduce ({C10D}:9)\n    train (/job/train.py:4)")
    look(tmp_path, 0, f"    barrier ({C10D}:9)\n    save (/job/train.py:30)")
    shown = [line.rstrip() for line in rendered(tmp_path)]
    both = "ranks 1 and 2 wait in all_reduce at train.py:4, rank 0 waits in barrier at train.py:30"
    assert shown[0] == f"UNDECIDED: {both}; no cause is confirmed"
    assert "waits   rank 0: barrier at train.py:30, for 16 s" in shown
    maybe = [line for line in shown if line.startswith("maybe")]
    assert "rank 0: rank 0 waits in a different call than the others" in maybe[0]
    assert all("rank 0: for the same reasons" in line for line in maybe[1:])


def test_ranks_that_move_do_not_wait(tmp_path: Path) -> None:
    for rank in range(3):
        look(tmp_path, rank, f"    all_reduce ({C10D}:9)\n    train (/job/train.py:4)", moves=True)
    said = [line.rstrip() for line in rendered(tmp_path)]
    assert said[0] == "UNDECIDED: ranks 0-2 made progress between the observations"
    assert any(line.startswith("needed  dtk attach again if it hangs") for line in said)


def test_ranks_that_wait_for_no_rank_but_do_not_move(tmp_path: Path) -> None:
    """The lock file of a build that was killed stops all ranks before they make a group."""
    stack = "    wait (/site-packages/torch/utils/file_baton.py:50)\n    main (/job/train.py:4)"
    for rank in range(3):
        look(tmp_path, rank, stack, moves=True)
    shown = rendered(tmp_path)
    assert shown[0].startswith("UNDECIDED: no rank moves: ranks 0-2 are waiting for the lock file of a C++ extension")
    assert shown[0].endswith("at train.py:4; no cause is confirmed") and not any("needed" in line for line in shown)


def test_a_group_whose_size_a_gather_tells_has_a_rank_that_left_no_line(tmp_path: Path) -> None:
    wait = (
        "[rank{0}]:[E513 13:25:57.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={4}, Timeout(ms)=600000) ran for 600042 milliseconds\n"
    )
    others = [wait.format(rank, 39, "BROADCAST", 5164, 5164) for rank in (1, 2)]
    shown = lines(tmp_path, wait.format(0, 41, "_ALLGATHER_BASE", 513, 2052) + "".join(others))
    assert any(line.startswith("silent") and "rank 3 logged nothing" in line for line in shown)


def test_one_line_without_a_rank_is_a_wait(tmp_path: Path) -> None:
    line = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n"  # noqa: E501
    shown = lines(tmp_path, line)
    assert shown[0] == "UNDECIDED: an unidentified rank waits in all_reduce of 1 element; no cause is confirmed"
    assert shown[1] == "waits   an unidentified rank: all_reduce of 1 element, #5, for 600 s"
    shown = lines(tmp_path, line + f"[E1] [Rank 3] {line}")
    assert shown[1] == "waits   rank 3: all_reduce of 1 element, #5, for 600 s", "the same call, and who waits in it"
    assert not any("unidentified" in text for text in shown)


def test_a_wait_that_only_ascends_library_tells(tmp_path: Path) -> None:
    line = "EI0002: The wait execution of the Notify register times out. Reason: none. base information: [streamID:[1], tag[AllReduce_10.0.0.1%eth0_0].]\n"  # noqa: E501
    shown = lines(tmp_path, line)
    assert shown[0] == "UNDECIDED: an unidentified rank waits in all_reduce; no cause is confirmed"
    assert not any("NCCL" in text or "TORCH_FR" in text for text in shown), "which are not for HCCL"


def test_what_is_needed_decides_the_likeliest_suspicion_in_every_form(tmp_path: Path) -> None:
    shown = lines(
        tmp_path, "RuntimeError: [gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused\n"
    )
    maybe, (needed,) = ([line for line in shown if line.startswith(label)] for label in ("maybe", "needed"))
    assert "[env.wrong_interface]" in maybe[0] and "getent hosts" in needed
    first, *_ = jsonform.as_json(diagnose(tmp_path))["suspicions"]
    assert first["cause"] == "env.wrong_interface" and needed.endswith(first["decide"])


def test_a_timeout_of_a_moment_is_suspected_itself(tmp_path: Path) -> None:
    line = "[rank3]:[E1] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={}) ran for {} milliseconds before timing out.\n"  # noqa: E501
    shown = lines(tmp_path, line.format(1, 90))
    assert shown[1].endswith("for 90 ms, the first of its group")
    maybe = [text for text in shown if text.startswith("maybe")]
    assert "hang.timeout_budget" in maybe[0] and "its timeout is only 1 ms" in maybe[0]
    assert not any("waited" in text for text in maybe), "no watchdog thread that could not run"
    texts = [text for text in lines(tmp_path, line.format(600000, 600090)) if text.startswith("maybe")]
    assert not any("its timeout" in text for text in texts)


def test_ranks_of_a_job_of_unknown_size_are_missed(tmp_path: Path) -> None:
    shown = lines(tmp_path, in_group(7, "9", 3, seq=77, numel=999))
    assert "silent  at least 7 other ranks of the job logged nothing about it" in shown
    assert not any(text.startswith("silent") for text in lines(tmp_path, hung(0)))
