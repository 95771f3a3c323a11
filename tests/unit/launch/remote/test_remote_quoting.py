"""Whatever names, paths and overrides hold: what the shell or the YAML parser reads back is the same, or refused."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st

from dtk.errors import DtkError
from dtk.launch.remote import kubernetes, skypilot, slurm
from dtk.launch.remote.submission import Submission
from tests.patience import stretched
from tests.unit.launch.remote.jobs import HOSTILE, KUBERNETES, SKYPILOT, SLURM, job

TEXT = st.text(
    st.sampled_from("ab1$(){}[]`'\"\\ \t;&|<>*?!#~%=:,@^-.\n\r\x00\x1b\u00e9\u2028\u202e"), min_size=1, max_size=24
)
SRUN = '#!/bin/bash\nprintf \'%s\\0\' "$NCCL_SOCKET_IFNAME" "$@"\n'
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def submission_of(launcher: list[str], name: str, value: str, **put: Any) -> Submission | None:
    """A submission whose run folder and variable hold the texts; None where dtk refuses them."""
    try:
        return job(*launcher, runs=f"/shared/{name}", nccl__variables={"NCCL_SOCKET_IFNAME": value}, **put)
    except DtkError:
        return None


@given(TEXT, TEXT, TEXT)
@example(HOSTILE, HOSTILE, HOSTILE)
@QUICK
def test_a_batch_script_gives_srun_what_was_meant_and_runs_nothing_else(name: str, value: str, option: str) -> None:
    submission = submission_of(SLURM, name, value, launcher__srun_extra=[f"--comment={option}"], launcher__setup=[])
    try:
        script = slurm.render(submission, "/") if submission else ""
    except DtkError:
        return
    if submission is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "srun").write_text(SRUN)
        (Path(folder) / "srun").chmod(0o755)
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": folder}
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, env=environment, cwd=folder, timeout=stretched(20)
        )
        words = done.stdout.decode("utf-8", "surrogateescape").split("\0")
        assert done.returncode == 0 and [path.name for path in Path(folder).iterdir()] == ["srun"], done.stderr
    assert words[0] == value and f"--comment={option}" in words
    assert words[-2:] == [str(submission.paths.root), ""]


@given(TEXT, TEXT)
@example(HOSTILE, HOSTILE)
@QUICK
def test_a_manifest_is_read_back_as_it_was_meant(name: str, value: str) -> None:
    submission = submission_of(KUBERNETES, name, value)
    if submission is None:
        return
    try:
        config_map, work = yaml.safe_load_all(kubernetes.render(submission))
    except DtkError:
        return
    container = work["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    folder = container["command"][container["command"].index("dtk.launch.remote.rank") + 1]
    stated = next(entry["value"] for entry in container["env"] if entry["name"] == "NCCL_SOCKET_IFNAME")
    for written, meant in ((folder, str(submission.paths.root)), (stated, value)):
        assert "$(" not in written.replace("$$", "")  # Which Kubernetes would expand.
        assert written.replace("$$", "$") == meant
    assert config_map["data"] == submission.files


@given(TEXT, TEXT)
@example(HOSTILE, HOSTILE)
@QUICK
def test_a_task_is_read_back_as_it_was_meant(name: str, value: str) -> None:
    submission = submission_of(SKYPILOT, name, value)
    if submission is None:
        return
    try:
        run = yaml.safe_load(skypilot.render(submission))["run"]
    except DtkError:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "torchrun").write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
        (Path(folder) / "torchrun").chmod(0o755)
        environment = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "HOME": folder}
        environment["PATH"] = f"{folder}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-c", run], capture_output=True, env=environment, cwd=folder, timeout=stretched(20)
        )
        remaining = {path.name.partition("-")[0] for path in Path(folder).iterdir()}
    assert done.returncode == 0 and remaining == {"torchrun", "dtk"}, done.stderr
    assert str(submission.paths.root) in done.stdout.decode("utf-8", "surrogateescape").split("\0")
