"""Memory of the host: what the kernel, Slurm and Kubernetes say, and allocations that failed."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.nodes import telemetry

HEAD = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 9, in <module>\n[rank1]: '
TABLE = "  time      : 2025-11-22_10:21:05\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 5001)\n"
KERNEL = "[12.3] Memory cgroup out of memory: Killed process {} ({}) total-vm:9kB, anon-rss:66060288kB\n"
OOM_KILL = "[12.2] oom-kill:constraint={},nodemask=(null),cpuset=/,mems_allowed=0-1,task={},pid={},uid=0\n"
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.\n"
WORKER = HEAD + "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. \n"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (SLURM + "srun: error: node12: task 3: Out Of Memory\n", (3,)),
        (TABLE + KERNEL.format(5001, "python3"), (1,)),
        (TABLE + KERNEL.format(9, "ray::WorkerDict"), (1,)),
        (TABLE + OOM_KILL.format("CONSTRAINT_MEMCG", "python3", 9), (1,)),
        (WORKER + SLURM, (1,)),
        ("slurmstepd: error: Exceeded job memory limit at some point.\n", ()),
        ("slurmstepd: error: Job 77 exceeded memory limit (6912000 > 4096000), being killed\n", ()),
        ("77           train        gpu        acc          8 OUT_OF_ME+    0:125\n", ()),
        ("4711|train|OUT_OF_MEMORY|0:125\n", ()),
        ("4711.0       OUT_OF_ME+ 268435456K       256G\n", ()),
        ("Message: The node had condition: [MemoryPressure].\n", ()),
        ("   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)\n", ()),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", ()),
        ("Warning Evicted pod/w-2 The node was low on resource: memory. Threshold quantity: 100Mi\n", ()),
        ("ray.tune.error.TuneError: ('Trials did not complete', [a])\n" + SLURM, ()),  # Knows of no reason.
        ("OutOfMemoryError: Task was killed due to the node running low on memory.\n", ()),
        ("(raylet) System memory low at node with IP 172.17.0.2. Used memory (23.63GB) / total capacity (33.28GB) "
         "(0.709971) exceeds threshold 0.7, killing latest task with name Trainer.step\n", ()),
        ("(raylet) node_manager.cc:3084: 4 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
         "crashed due to other reasons at node (ID: b287, IP: 172.28.0.12)\n", ()),
        (HEAD + "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\n", (1,)),
        (HEAD + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 120. GiB for an array\n", (1,)),
    ],
)  # fmt: skip
def test_host_memory_ran_out(tmp_path: Path, text: str, ranks: tuple[int, ...]) -> None:
    (tmp_path / "job.log").write_text(text)
    report = diagnose(tmp_path)
    assert report.outcome == "oom"
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("memory.host", ranks)]


def test_the_limit_of_the_container_is_told(tmp_path: Path) -> None:
    limits = "    Limits:\n      cpu:             32\n      memory:          200Gi\n      nvidia.com/gpu:  8\n"
    (tmp_path / "pod.txt").write_text("    State:  Terminated\n      Reason:       OOMKilled\n" + limits)
    (root,) = diagnose(tmp_path).root_causes
    assert text_of(root).summary == "The job reached its memory limit of 200Gi, and SIGKILL ended a process of the job."
    assert [str(item.detail) for item in root.evidence][-1] == "memory:          200Gi"


def test_what_the_ranks_held_before_one_was_killed(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(TABLE + KERNEL.format(5001, "python3"))
    grows = {"rank_rss_bytes": {"0": 2 << 30, "1": 90 << 30}, "memory_used_bytes": 124 << 30}
    (tmp_path / "node_00000.jsonl").write_text(telemetry(host=[{}, grows]))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("memory.host", (1,))
    assert [str(item.detail) for item in root.evidence if item.kind == "telemetry"] == [
        "when memory was last sampled, ranks 0 and 1 held 2 GiB to 90 GiB each (most: rank 1; at the first sample 1 "
        "GiB or more) and other processes 32 GiB, of 128 GiB"
    ]


def test_the_line_and_the_ranks_that_lost_it_are_told(tmp_path: Path) -> None:
    lost = (
        HEAD.replace("rank1", "rank0") + "RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer\n"
    )
    (tmp_path / "job.log").write_text(HEAD + "RuntimeError: DefaultCPUAllocator: can't allocate memory.\n" + lost)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.victims) == ("memory.host", (1,), (0,))
    assert [(place.rank, place.file, place.line) for place in root.where] == [(1, "/job/train.py", 9)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WORKER, "hang.rank_raised"),  # Anybody may have sent that signal.
        (TABLE, "hang.rank_killed"),
        (TABLE + KERNEL.format(7, "java"), "hang.rank_killed"),  # Another program of the node.
        (TABLE + OOM_KILL.format("CONSTRAINT_NONE", "java", 7), "hang.rank_killed"),
        (HEAD + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "hang.rank_oom"),
    ],
)
def test_other_ends_are_not_the_hosts_memory(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "job.log").write_text(text)
    assert [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes] == [(cause, (1,))]


def test_two_lines_about_one_kill_do_not_explain_two_ranks(tmp_path: Path) -> None:
    tables = TABLE + TABLE.replace(": 1 (local_rank: 1)", ": 2 (local_rank: 2)").replace("5001", "5002")
    lines = OOM_KILL.format("CONSTRAINT_NONE", "python3", 9) + KERNEL.format(9, "python3")
    (tmp_path / "job.log").write_text(tables + lines)
    assert "memory.host" not in {root.cause for root in diagnose(tmp_path).root_causes}
    (tmp_path / "job.log").write_text(tables + lines + KERNEL.format(10, "python3"))
    assert {root.cause for root in diagnose(tmp_path).root_causes} == {"memory.host"}


def test_who_invoked_the_oom_killer_is_not_who_was_killed(tmp_path: Path) -> None:
    head = "[12.1] python invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null), order=0\n"
    (tmp_path / "job.log").write_text(head)
    report = diagnose(tmp_path)
    assert not report.root_causes and [row.cause for row in report.suspicions] == ["memory.host"]
    (tmp_path / "job.log").write_text(head + KERNEL.format(7, "java"))
    report = diagnose(tmp_path)
    assert not (report.root_causes or report.suspicions)


def test_a_devices_word_for_its_memory_is_not_slurms(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("cuMemCreate returned OUT_OF_MEMORY 2\nerror OUT_OF_MEMORY: 0\n")
    assert not diagnose(tmp_path).root_causes


@pytest.mark.parametrize(("size", "own"), [(67_108_864, True), (900_000_000_000, False)])
def test_a_small_request_that_is_refused_shows_a_limit_of_the_process(tmp_path: Path, size: int, own: bool) -> None:
    """Linux grants it by default where memory runs out, and kills a process when the pages are used."""
    error = f"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes."
    (tmp_path / "job.log").write_text(HEAD + error + " Error code 12 (Cannot allocate memory)\n")
    (root,) = diagnose(tmp_path).root_causes
    text = text_of(root)
    assert ("limit of the process" in text.summary, "ulimit -v" in text.remedies[0].change) == (own, own)


@pytest.mark.parametrize(
    ("raised", "huge"),
    [
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 72.8 TiB for an array with shape (1,)", True),
        ("numpy.core._exceptions.MemoryError: Unable to allocate 1.5 PiB for an array with shape (1,)", True),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 80000000000000 bytes. Error code 12 (Cannot allocate memory)", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.8 TiB for an array with shape (1,)", False),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 72.8 GiB for an array with shape (1,)", False),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 800000000000 bytes. Error code 12 (Cannot allocate memory)", False),
    ],
)  # fmt: skip
def test_a_request_that_no_host_can_hold_has_words_of_its_own(tmp_path: Path, raised: str, huge: bool) -> None:
    head = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    a = make(n)\n'
    (tmp_path / "train.log").write_text(f"{head}{raised}\n")
    (root,) = diagnose(tmp_path).root_causes
    text = text_of(root)
    assert (root.cause, "in one piece than a host has" in text.summary) == ("memory.host", huge)
    assert any("num_workers" in remedy.change for remedy in text.remedies) is not huge
