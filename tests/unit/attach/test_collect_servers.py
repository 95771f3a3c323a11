"""Servers of a job are asked: torch's debug server in a live gloo job, and what answers in RAS's place."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from dtk.attach import collect, processes
from dtk.attach.processes import Job, RankProcess

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
JOB = """
import sys, time, types
tables = types.ModuleType("tabulate")  # Only for tables of pages that are not asked.
tables.tabulate = None
sys.modules.setdefault("tabulate", tables)
import torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server
dist.init_process_group("gloo")
start_debug_server(port=int(sys.argv[1]), start_method="fork")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(8))
print("ready", flush=True)
time.sleep(600)
"""
STANDS_IN = """
import socket, sys, time
server = socket.create_server(("localhost", int(sys.argv[1])))
print("ready", flush=True)
while True:
    client = server.accept()[0]
    said = client.recv(100)
    client.sendall(sys.argv[2].encode().replace(b"SAID", said))
    time.sleep(float(sys.argv[3]))
    client.close()
"""
RAS = "NCCL version 2.28.3 compiled with CUDA 12.9\n\nJob summary\n===========\n\n"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port: int = server.getsockname()[1]
        return port


@contextmanager
def started(text: str, *words: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    argv, env = [sys.executable, "-c", text, *words], {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        for child in processes.children(process.pid):
            os.kill(child, 9)
        process.kill()
        process.communicate()


def rank_of(process: "subprocess.Popen[str]", rank: int = 0, **environment: str) -> Job:
    return {rank: RankProcess(process.pid, rank, 2, ("job",), "python train.py", environment)}


def test_torchs_debug_server_gives_stacks_and_flight_records_of_all_ranks(tmp_path: Path) -> None:
    port, words = free_port(), {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with started(JOB, str(port), **words, RANK="0") as first, started(JOB, str(port), **words, RANK="1") as second:
        assert second.stdout is not None and second.stdout.readline() == "ready\n"
        ends_s = time.monotonic() + 120
        while not (answers := collect.answers(rank_of(first))).flight:  # Until rank 0 waits.
            assert time.monotonic() < ends_s, answers
            time.sleep(0.5)
    assert "in all_reduce" in answers.stacks[0] and "in all_reduce" not in answers.stacks[1]
    assert answers.lacks == [] and answers.ras == b""
    collect._answers(tmp_path, 0, answers, seen={0})
    evidence = gather(tmp_path, Limits())
    assert [stack.rank for stack in evidence.stacks] == [1], "of rank 0 py-spy has seen stacks"
    assert [file.rank for file in evidence.files["flight"]] == [0]


def test_ras_is_asked_where_a_rank_listens(tmp_path: Path) -> None:
    port = free_port()
    address = {"NCCL_RAS_ADDR": f"localhost:{port}"}
    with started(STANDS_IN, str(port), f"{RAS}SAID", "0") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        answers = collect.answers(rank_of(process, 3, **address))
        assert answers.ras.decode() == f"{RAS}verbose status\n" and answers.lacks == []
        other = {3: RankProcess(os.getpid(), 3, 4, ("job",), "python train.py", address)}
        assert collect.answers(other) == collect.Answers(), "a server of another job is left alone"
    collect._answers(tmp_path, 3, answers, set())
    assert gather(tmp_path, Limits()).facts[0].kind == "ras_agrees"


def test_a_server_that_does_not_end_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(collect, "ANSWER_S", 0.3)
    with started(STANDS_IN, str(port), "endless", "600") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        answers = collect.answers(rank_of(process, NCCL_RAS_ADDR=f"localhost:{port}"))
        assert answers.ras == b"" and answers.lacks == ["NCCL's RAS did not answer within 0.3 s"]


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(collect, "MOST_BYTES", 3)
    with started(STANDS_IN, str(port), "long", "0") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert collect.ask(port, b"status\n") == b""
