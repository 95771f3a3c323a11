import json
from pathlib import Path
from time import time

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.report.model import Report

HANGUP = (
    "W0920 09:10:41.194000 84 torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting\n"
    "W0920 09:10:41.195000 84 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 90 closing signal "
    "SIGHUP\n"
)
TERMINATED = HANGUP.replace("Received 1 ", "Received 15 ").replace("SIGHUP", "SIGTERM")
SLURM = "slurmstepd: error: *** STEP 77.0 ON gpu07 CANCELLED AT 2026-04-20T09:09:37 {}***\n"
SACCT = (
    "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
    "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
    "4711         train.sba+        gpu       lab1         64  {} \n"
)
STEPS = "".join(f"step {step} loss {4 - step / 10:.2f}\n" for step in range(12))
TIMEOUT = (
    "[rank2]:[E920 09:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600009 milliseconds "
    "before timing out.\n"
)
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n    f()\nKeyError: 3\n'


def of(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    return diagnose(folder)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (HANGUP, "SIGHUP: the terminal"),
        (STEPS + TERMINATED, "SIGTERM"),
        (
            STEPS + "W1105 10:30:20.1 51 torch/x/api.py:719] Received Signals.SIGTERM death signal, shutting\n",
            "SIGTERM",
        ),
        ("[2026-02-27T21:35:32.1Z] fa88 || WARNING: torch.distributed.elastic:Received 15 death signal\n", "SIGTERM"),
        (STEPS + SLURM.format("DUE TO TIME LIMIT "), "time limit"),
        (SLURM.format("DUE TO PREEMPTION ") + RAISED, "preempted"),
        (SLURM.format("DUE TO NODE FAILURE "), "node failed"),
        ("step 4100 loss 2.211\nsalloc: error: Node failure on worker-1\n", "node failed"),
        (SLURM.format("DUE TO JOB REQUEUE "), "requeued the job"),
        ("Reason: Evicted\nMessage: The node was low on resource: ephemeral-storage. Threshold 10%\n", "evicted"),
        (SACCT.format("NODE_FAIL      1:0"), "node failed"),
        (SACCT.format("TIMEOUT        0:0"), "time limit"),
        (SACCT.format("PREEMPTED      0:0"), "preempted"),
        ("4711|train|TIMEOUT|0:0|\n4711.batch|batch|CANCELLED|0:15|\n", "time limit"),
        ("4711_3.0|python|NODE_FAIL|1:0\n", "node failed"),
        ("   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)\n", "node failed"),
        (HANGUP.splitlines()[1] + "\n", "SIGHUP: the terminal"),
        ("The actor died because its node has died.\n\tthe actor's node was preempted: spot\n", "preempted"),
        ("\tThe actor's node was killed by a spot preemption.\n", "preempted"),
        ("\tthe actor's node was terminated expectedly: received SIGTERM\n", "asked to end"),
        ("Message: The node had condition: [DiskPressure]. \n", "evicted"),
        ('Message: Usage of EmptyDir volume "dshm" exceeds the limit "1Gi". \n', "/dev/shm"),
        ("Message: Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. \n", "disk"),
        ('Message: Container train exceeded its local ephemeral storage limit "10Gi". \n', "disk"),
        ("Message: The node was low on resource: pids. Threshold quantity: 100, available: 3. \n", "process IDs"),
        ("NAME   READY   STATUS     RESTARTS   AGE\nw-0    1/1     NodeLost   0          3h\n", "stopped responding"),
        ("  Reason:               PreemptionByScheduler\n", "higher priority"),
        ("  DisruptionTarget  True  reason: DeletionByTaintManager\n", "stopped responding"),
        ("Message: Pod was terminated in response to imminent node shutdown.\n", "shut down"),
        (STEPS + "=>> PBS: job killed: walltime 86431 exceeded limit 86400\n", "time limit"),
        (STEPS + "Aborted by PBS Server\nJob exceeded its walltime limit. Job was aborted\n", "time limit"),
        (
            STEPS + "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n",
            "time limit",
        ),
        (STEPS + "TERM_PREEMPT: job killed after preemption.\n", "LSF preempted"),
        ("[2026-02-27 21:35:32,100] [INFO] [launch.py:315] Main process received SIGTERM, exiting\n", "SIGTERM"),
    ],
)
def test_who_stopped_the_job_is_named(tmp_path: Path, text: str, word: str) -> None:
    report = of(tmp_path, text)
    assert [root.cause for root in report.root_causes] == ["env.job_stopped"]
    assert report.outcome == "crashed"
    assert word in text_of(report.root_causes[0]).summary


@pytest.mark.parametrize(
    "text",
    [
        TIMEOUT + TERMINATED,  # Somebody ended a job that hung.
        RAISED + HANGUP,
        TIMEOUT + SLURM.format("DUE TO TIME LIMIT "),
        HANGUP.replace("Received 1 ", "Received 2 ").replace("SIGHUP", "SIGINT"),  # Ctrl-C says nothing of why.
        HANGUP.splitlines()[1].replace("SIGHUP", "SIGQUIT"),
        HANGUP.splitlines()[1].replace("SIGHUP", "SIGTERM"),  # How torch's agent cleans up after a failure.
        STEPS + SLURM.format(""),  # Slurm ends a step in this way too when one of its tasks failed.
    ],
)
def test_a_job_that_had_failed_was_not_ended_by_being_stopped(tmp_path: Path, text: str) -> None:
    report = of(tmp_path, text)
    assert report.outcome != "healthy"
    assert "env.job_stopped" not in [root.cause for root in report.root_causes]


def test_a_run_whose_launcher_and_ranks_were_killed_together_is_lost(tmp_path: Path) -> None:
    from socket import gethostname
    from subprocess import Popen

    with Popen(["true"]) as process:  # A process of this machine that has ended.
        pass
    run = tmp_path / "run"
    run.mkdir()
    (run / "status.json").write_text('{"state": "running", "attempt": 0, "schema_version": 1, "step": 3}')
    manifest = (
        f'{{"run_id": "run", "schema_version": 1, "host": "{gethostname()}", "pid": {process.pid}, "pid_start": 1}}'
    )
    (run / "manifest.json").write_text(manifest)
    report = diagnose(run)
    assert report.outcome == "undecided" and not report.root_causes
    assert report.statement == "The launcher and its ranks were killed together, and no record shows what killed them"
    assert any("dmesg" in note for note in report.notes)
    (run / "manifest.json").write_text(manifest.replace(gethostname(), "another-host"))  # Its processes are not seen.
    assert "no rank has left a heartbeat" in (elsewhere := diagnose(run)).statement and elsewhere.outcome == "undecided"
    (run / "heartbeat").mkdir()
    beat = {"step": 3, "region": "forward", "pid": 1, "host": "another-host", "attempt": 0, "beat": 1, "beat_end": 1}
    for age_s, word in ((7200, "its last heartbeat is 7,200 s old"), (5, "")):
        (run / "heartbeat" / "rank_00000.json").write_text(json.dumps({**beat, "time_s": time() - age_s}))
        assert word in (again := diagnose(run)).statement and again.outcome == ("undecided" if word else "healthy")


@pytest.mark.parametrize(
    "line",
    [
        "=>> PBS: job killed: mem 132120576kb exceeded limit 125829120kb",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    ],
)
def test_a_scheduler_that_ends_a_job_for_its_memory(tmp_path: Path, line: str) -> None:
    assert [root.cause for root in of(tmp_path, f"{STEPS}{line}\n").root_causes] == ["memory.host"]


def test_a_job_that_somebody_ended_by_a_command_is_undecided(tmp_path: Path) -> None:
    report = of(tmp_path, STEPS + "TERM_OWNER: job killed by owner.\n")
    assert not report.root_causes and report.statement.startswith("The job was ended with")


@pytest.mark.parametrize(("state", "cause"), [("NODE_FAIL      1:0", "env.job_stopped"), ("TIMEOUT        0:0", "")])
def test_peers_that_lose_a_node_are_effects_of_it_and_a_hang_before_a_time_limit_is_none(
    tmp_path: Path, state: str, cause: str
) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT.format(state))
    report = of(tmp_path, TIMEOUT)
    assert [root.cause for root in report.root_causes] == [cause][: len(cause)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("NAME   READY   STATUS    RESTARTS   AGE\nw-0    0/1     Evicted   0          3h\n", "evicted the pod"),
        ("    State:          Terminated\n      Reason:       Error\n      Exit Code:    137\n", "exit code 137"),
        ("    State:          Terminated\n      Reason:       Error\n      Exit Code:    143\n", "exit code 143"),
    ],
)
def test_a_pod_that_was_ended_for_a_reason_that_no_line_names(tmp_path: Path, text: str, word: str) -> None:
    report = of(tmp_path, text)
    assert report.outcome == "undecided" and not report.root_causes and word in report.statement


@pytest.mark.parametrize(
    "text",
    [
        "the loader hit a TIMEOUT 3 times\n",
        "4711 requests, of which 3 ended in TIMEOUT\n",
        "step 3 EvictedBatches: 0\n",
        "      Exit Code:    0\n",
    ],
)
def test_words_of_schedulers_in_other_lines_stop_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(STEPS + text)
    assert not any(fact.kind == "job_stopped" for fact in gather(tmp_path, Limits()).facts)


ENDED = STEPS + "Training finished\n"
LIMIT = SLURM.format("DUE TO TIME LIMIT ")


@pytest.mark.parametrize("stop", [LIMIT, TERMINATED, "run.sh: line 9: 77 Terminated              torchrun t.py\n"])
def test_a_stop_after_the_end_of_the_training_is_a_note(tmp_path: Path, stop: str) -> None:
    report = of(tmp_path, ENDED + stop)
    assert not report.root_causes and any("the training had ended" in note for note in report.notes)
    assert of(tmp_path, ENDED + STEPS.replace("step ", "step 2") + stop).root_causes, "another training began"
    assert of(tmp_path, STEPS + stop).root_causes


def test_so_it_is_in_a_file_of_its_own_unless_another_log_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "job.err").write_text(LIMIT)
    assert not of(tmp_path, ENDED).root_causes
    (tmp_path / "other.log").write_text(STEPS)
    assert of(tmp_path, ENDED).root_causes


@pytest.mark.parametrize(
    ("command", "trains"),
    [
        ("python gpu_monitor.py --interval 5", False),
        ("nvidia-smi dmon -s u > gpu.csv", False),
        ("python3 -u -m tensorboard.main --logdir train", False),
        ("./watch.sh train.log", False),
        ("CUDA_VISIBLE_DEVICES=0 python -u main.py", True),
        ("nohup python -m torch.distributed.run t.py", True),
        ("/opt/env/bin/torchrun t.py", True),
        ("numactl -N 0 ./train.sh", True),
        ("python cifar.py --monitor loss", True),
    ],
)
@pytest.mark.parametrize("word", ["Terminated", "Killed"])
def test_of_a_shells_commands_only_the_one_that_trains_is_the_job(
    tmp_path: Path, word: str, command: str, trains: bool
) -> None:
    (tmp_path / "job.log").write_text(f"{STEPS}run.sh: line 12: 4242 {word}              {command}\n")
    evidence = gather(tmp_path, Limits())
    assert (
        [f.kind for f in evidence.facts if f.kind == "job_stopped"] + [e.signal for e in evidence.errors] != []
    ) == trains


@pytest.mark.parametrize(
    ("rows", "is_stopped"),
    [
        ("100  train  TIMEOUT  0:0\n101  train  COMPLETED  0:0\n", False),
        ("100|train|TIMEOUT|0:0|\n101|train|RUNNING|0:0|\n", False),
        ("100  train  COMPLETED  0:0\n101  train  TIMEOUT  0:0\n101.batch  batch  CANCELLED  0:15\n", True),
        ("101_1  train  TIMEOUT  0:0\n101_2  train  COMPLETED  0:0\n", True),
    ],
)
def test_the_row_of_the_last_job_counts(tmp_path: Path, rows: str, is_stopped: bool) -> None:
    report = of(tmp_path, rows)
    assert [root.cause for root in report.root_causes] == ["env.job_stopped"] * is_stopped


@pytest.mark.parametrize(("pod", "is_own"), [("prep-data-x7k2", False), ("train-worker-2", True)])
def test_the_pod_of_another_job_was_evicted(tmp_path: Path, pod: str, is_own: bool) -> None:
    rows = f"{pod}  0/1  Evicted  0  9d\ntrain-worker-0  1/1  Running  0  3h\n"
    assert ("evicted" in str(of(tmp_path, rows).statement)) == is_own


def raised(rank: int, last: str) -> str:
    lines = f'Traceback (most recent call last):\n  File "t.py", line {20 + rank}, in main\n    f()\n{last}\n'
    return "".join(f"[rank{rank}]: {line}\n" for line in lines.splitlines())


SIGNALS = [
    "lightning.pytorch.utilities.exceptions.SIGTERMException",
    "RuntimeError: DataLoader worker (pid 55) is killed by signal: Terminated. ",
    "SystemExit: 143",
    "InterruptedError: received signal 15",
]


@pytest.mark.parametrize("last", SIGNALS)
def test_ranks_that_report_a_signal_were_stopped(tmp_path: Path, last: str) -> None:
    report = of(tmp_path, STEPS + raised(0, last) + raised(1, last))
    assert [root.cause for root in report.root_causes] == ["env.job_stopped"]


@pytest.mark.parametrize("last", [*SIGNALS, "KeyboardInterrupt"])
@pytest.mark.parametrize("first", [True, False])
def test_beside_a_ranks_own_exception_they_are_its_effects(tmp_path: Path, last: str, first: bool) -> None:
    own, others = raised(2, "KeyError: 'labels'"), raised(0, last) + raised(1, last)
    report = of(tmp_path, STEPS + (own + others if first else others + own))
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (2,))]


@pytest.mark.parametrize(
    "text",
    [
        raised(0, "KeyboardInterrupt")
        + raised(1, "RuntimeError: DataLoader worker (pid 5) is killed by signal: Interrupt."),
        TIMEOUT + raised(0, SIGNALS[0]),
        TERMINATED.splitlines()[1] + "\n" + raised(0, SIGNALS[0]),  # How torch's agent cleans up after a failure.
    ],
)
def test_why_they_were_stopped_is_open(tmp_path: Path, text: str) -> None:
    assert not of(tmp_path, STEPS + text).root_causes


def test_the_watch_that_ended_a_job_which_hung_is_no_reason(tmp_path: Path) -> None:
    verdict = {"kind": "stall", "reason": "nothing moved", "culprits": [], "victims": [0, 1], "time_s": 1.5}
    (tmp_path / "watch.json").write_text(json.dumps(verdict))
    assert "env.job_stopped" not in {root.cause for root in of(tmp_path, STEPS + TERMINATED).root_causes}
