"""Kubernetes' JSON and the system's journal: the same facts as in their text, beside a log or alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose

LIMITS = {"resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": "8"}}}
KILLED = (
    "Memory cgroup out of memory: Killed process 4242 (python) total-vm:98765432kB, anon-rss:67000000kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
)


def pods(status: dict[str, Any]) -> dict[str, Any]:
    """A list as `kubectl get pods -o json` prints it, with one pod."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-worker-3"}}
    pod |= {"spec": {"containers": [{"name": "train", **LIMITS}]}, "status": status}
    return {"apiVersion": "v1", "items": [pod], "kind": "List", "metadata": {"resourceVersion": ""}}


def terminated(reason: str) -> dict[str, Any]:
    state = {"terminated": {"containerID": "containerd://7f", "exitCode": 137, "reason": reason}}
    return {
        "containerStatuses": [{"lastState": {}, "name": "train", "restartCount": 0, "state": state}],
        "phase": "Failed",
    }


def evicted(message: str) -> dict[str, Any]:
    return {"message": message, "phase": "Failed", "reason": "Evicted", "startTime": "2026-11-29T10:00:00Z"}


def journal(*messages: Any) -> str:
    about = {"__CURSOR": "s=1;i=2", "__REALTIME_TIMESTAMP": "1764400000000000", "_TRANSPORT": "kernel"}
    return "".join(json.dumps({**about, "MESSAGE": message}) + "\n" for message in messages)


HONEST = json.dumps(pods(terminated("OOMKilled")), indent=4).encode()
DAMAGED = None  # What is cut off is read up to there.


@pytest.mark.parametrize("indent", [4, None])
@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (terminated("OOMKilled"), "memory.host"),
        (evicted("The node was low on resource: memory. Threshold quantity: 100Mi, available: 31Mi. "), "memory.host"),
        (evicted("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi. "), "env.job_stopped"),
        ({"phase": "Failed", "conditions": [{"reason": "PreemptionByScheduler", "status": "True"}]}, "env.job_stopped"),
        (terminated("Error"), ""),
        ({"phase": "Running"}, ""),
    ],
)
def test_how_a_pod_ended(tmp_path: Path, status: dict[str, Any], cause: str, indent: int | None) -> None:
    (tmp_path / "pods.json").write_text(json.dumps(pods(status), indent=indent))
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == [cause][: len(cause)]
    if cause == "memory.host" and "containerStatuses" in status:
        assert "64Gi" in text_of(report.root_causes[0]).summary


def test_a_list_of_pods_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    text = json.dumps(pods(terminated("OOMKilled")), indent=4)
    (tmp_path / "pods.json").write_text(text[: text.index("OOMKilled") + 11])
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["memory.host"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (journal("usb 1-1: new device", KILLED), "memory.host"),
        (journal("NVRM: Xid (PCI:0000:c1:00): 79, pid=4242, GPU has fallen off the bus."), "hardware.gpu_fault"),
        (journal(None, [27, 91], KILLED), "memory.host"),
        (journal(KILLED)[:-40], "memory.host"),  # Cut off within the line.
        (journal("usb 1-1: new device"), ""),
    ],
)
@pytest.mark.parametrize("name", ["journal.json", "kernel.log"])
def test_messages_of_the_journal(tmp_path: Path, text: str, cause: str, name: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause][: len(cause)]


def bytes_of(text: str) -> list[int]:
    return [*f"{text}\x1b[0m".encode()]


@pytest.mark.parametrize(("numbers", "cause"), [(bytes_of(KILLED), "memory.host"), ([999], ""), ([None], "")])
def test_a_message_of_the_journal_with_a_control_character(tmp_path: Path, numbers: list[Any], cause: str) -> None:
    lines = journal("usb 1-1: new device", numbers).splitlines()
    compact = (json.dumps(json.loads(line), separators=(",", ":")) for line in lines)  # As journalctl writes them.
    (tmp_path / "journal.json").write_text("\n".join(compact) + "\n")
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause][: len(cause)]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("OUT_OF_MEMORY", "memory.host"),
        ("TIMEOUT", "env.job_stopped"),
        ("NODE_FAIL", "env.job_stopped"),
        ("COMPLETED", ""),
    ],
)
def test_how_slurm_says_in_json_that_a_job_ended(tmp_path: Path, state: str, cause: str, listed: bool) -> None:
    """Since Slurm 23 the state is a list."""
    job = {"account": "ml", "comment": {"job": "TIMEOUT of 3 h"}, "name": "train", "job_id": 7}
    job |= {"state": {"current": [state] if listed else state, "reason": "None"}}
    (tmp_path / "sacct.json").write_text(json.dumps({"jobs": [job], "meta": {"plugin": {}}}))
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause][: len(cause)]


FATAL = (
    'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    main()\n'
    '  File "/job/up.py", line 4, in put\n    x()\nKeyError: 7'
)


@pytest.mark.parametrize("key", ["exc_info", "stack_trace"])
@pytest.mark.parametrize(("above", "below", "fatal"), [(FATAL, 0, True), (FATAL.replace("<module>", "save"), 2, False)])
def test_a_traceback_beside_the_message_of_a_logger(
    tmp_path: Path, key: str, above: str, below: int, fatal: bool
) -> None:
    rows = [{"level": "INFO", "rank": 1, "msg": f"step {n} loss 2.{n % 7}"} for n in range(20 + below)]
    rows.insert(20, {"level": "ERROR", "rank": 1, "msg": "it failed", key: above})
    (tmp_path / "job.log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = diagnose(tmp_path)
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (1,))] * fatal
    assert any("KeyError: 7; the job continued" in note for note in report.notes) != fatal
