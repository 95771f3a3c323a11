"""What every rendered job must hold, whatever is in it: quoting above all."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dtk.config.placement import Placement, remote_placement
from dtk.config.strict import from_plain
from dtk.console import script_text
from dtk.errors import DtkError
from dtk.launch.remote import kubernetes, skypilot, slurm
from dtk.launch.remote.submission import Submission
from tests.unit.launch.remote.jobs import HOSTILE, HSDP, JOBS, KUBERNETES, RUN_ID, SKYPILOT, SLURM, job


def hostile(*overrides: str, **put: object) -> Submission:
    variables = {"NCCL_SOCKET_IFNAME": HOSTILE}
    return job(*overrides, runs="/shared/it's $HOME `x` %j;$(id)", nccl__variables=variables, **put)


def shellcheck(script: str, tmp_path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "script.sh"
    path.write_text(script, encoding="utf-8")
    # What is in single quotes is to be expanded by nobody.
    done = subprocess.run(
        [program, "--shell=bash", "--exclude=SC2016", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def in_bash(script: str, tmp_path: Path, **variables: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **variables}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("launcher", ["plain", "hostile"])
def test_shellcheck_finds_nothing_in_a_batch_script(launcher, tmp_path):
    one = job(*SLURM) if launcher == "plain" else hostile(*SLURM)
    shellcheck(slurm.render(one, "/home/user/work"), tmp_path)


def test_shellcheck_finds_nothing_in_a_task(tmp_path):
    shellcheck("#!/bin/bash\n" + skypilot.run_script(hostile(*SKYPILOT)), tmp_path)


def test_hostile_text_stays_one_argument_of_srun(tmp_path):
    """The script runs with a stand-in for srun that says what it got."""
    (tmp_path / "srun").write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        'print(json.dumps([sys.argv, os.environ["NCCL_SOCKET_IFNAME"]]))\n'
    )
    (tmp_path / "srun").chmod(0o755)
    one = hostile(*SLURM, launcher__srun_extra=[f"--comment={HOSTILE}"], launcher__setup=[])
    answer = in_bash(slurm.render(one, "/"), tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    argv, variable = json.loads(answer.splitlines()[-1])
    assert f"--comment={HOSTILE}" in argv
    assert argv[-1] == str(one.paths.root) and argv[-2] == "dtk.launch.remote.rank"
    assert variable == HOSTILE


def test_a_variable_of_the_user_wins_in_the_script(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\necho $NCCL_DEBUG\n")
    (tmp_path / "srun").chmod(0o755)
    script = slurm.render(job(*SLURM, "launcher.setup=[]"), "/")
    path = f"{tmp_path}:/usr/bin:/bin"
    assert in_bash(script, tmp_path, PATH=path) == "WARN\n"
    assert in_bash(script, tmp_path, PATH=path, NCCL_DEBUG="INFO") == "INFO\n"


def test_no_line_of_the_user_becomes_an_option_or_a_command():
    one = job(*SLURM)
    forged = Submission(**{**{key: getattr(one, key) for key in one.__slots__}, "typed": ["a=\n#SBATCH --uid=0\nid"]})
    assert not [line for line in slurm.render(forged, "/").splitlines() if line.startswith(("#SBATCH --uid", "id"))]
    for key in ("partition", "account", "qos", "memory_per_node"):
        with pytest.raises(DtkError, match="line break"):
            slurm.render(job(*SLURM, f'launcher.{key}="x\n#SBATCH --uid=0"'), "/")
    for key in ("extra", "srun_extra", "setup"):
        with pytest.raises(DtkError, match="line break"):
            slurm.render(job(*SLURM, f'launcher.{key}=["--x=1\nid"]'), "/")


def test_options_of_sbatch_come_before_the_first_command():
    lines = slurm.render(job(*SLURM), "/").splitlines()
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert max(options) < first
    assert "module load cuda" in lines[first:]


def test_the_log_has_only_the_number_of_the_job_as_a_pattern():
    script = slurm.render(hostile(*SLURM), "/")
    (pattern,) = re.findall(r"^#SBATCH --output=(.*)$", script, flags=re.MULTILINE)
    assert shlex.split(pattern)[0] == f"/shared/it's $HOME `x` %%j;$(id)/{RUN_ID}/logs/slurm-%j.log"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (['launcher.extra=["--nodes=4"]'], "launcher.nodes"),
        (['launcher.extra=["--output=x"]'], "dtk's own"),
        (['launcher.extra=["constraint=h100"]'], "is no option"),
        (["launcher.time=soon"], "no time limit"),
    ],
)
def test_options_that_sbatch_would_misread_are_one_line(overrides, told):
    with pytest.raises(DtkError, match=told):
        slurm.render(job(*SLURM, *overrides), "/")


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_a_manifest_expands_nothing_of_the_user(kind):
    one = hostile(*KUBERNETES, f"launcher.kind={kind}")
    config_map, work = yaml.safe_load_all(kubernetes.render(one))
    if kind == "TrainJob":
        container = work["spec"]["trainer"]
    else:
        container = work["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    folder = container["command"][container["command"].index("dtk.launch.remote.rank") + 1]
    value = next(one["value"] for one in container["env"] if one["name"] == "NCCL_SOCKET_IFNAME")
    for written, meant in ((folder, str(one.paths.root)), (value, HOSTILE)):
        assert "$(" not in written.replace("$$", "")
        assert written.replace("$$", "$") == meant
    assert from_plain(yaml.safe_load(config_map["data"]["config.yaml"])) == one.config


def test_names_are_dns_labels_and_keep_the_random_end():
    one = job(*KUBERNETES, run_id="20260102-030405-" + "My_Model" * 8 + "-hsdp-w16-ab12")
    name = kubernetes.name_of(one)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])", name) and name.endswith("-ab12")


def test_a_task_puts_down_exactly_what_was_frozen(tmp_path):
    (tmp_path / "torchrun").write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    (tmp_path / "torchrun").chmod(0o755)
    one = hostile(*SKYPILOT)
    run = yaml.safe_load(skypilot.render(one))["run"]
    assert run == skypilot.run_script(one)
    variables = {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    argv = json.loads(in_bash(run, tmp_path, **variables))
    assert argv[:4] == ["--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1"]
    assert str(one.paths.root) in argv
    (frozen,) = tmp_path.glob("dtk-frozen-*")
    assert {path.name: path.read_text() for path in frozen.iterdir()} == one.files


def test_no_frozen_text_ends_its_own_file(tmp_path):
    one = job(*SKYPILOT)
    one.files["config.yaml"] += "DTK_END_OF_FILE\ntouch owned\n"
    run = skypilot.run_script(one).rpartition("torchrun")[0]
    in_bash(run, tmp_path)
    assert not (tmp_path / "owned").exists()
    assert next(tmp_path.glob("dtk-frozen-*/config.yaml")).read_text() == one.files["config.yaml"]


@pytest.mark.parametrize("value", ["yes", "1e3", "0x1f", "1:30", "~", "null", "- a", "a: b", "#x", " x", "%d", "\ttab"])
def test_yaml_keeps_text_as_text_for_old_and_new_readers(value):
    written = script_text.as_yaml({"key": value})
    assert yaml.safe_load(written) == {"key": value}
    assert '"' in written or written == "key: yes\n" or re.fullmatch(r"key: [a-z]+\n", written) is None


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["launcher=slurm", "launcher.gpus_per_node=8", "launcher.nproc=16"], "more than launcher.gpus_per_node=8"),
        (["launcher=slurm", "launcher.gpus_per_node=8", "launcher.nproc=4"], "leaves 4 GPUs of each node idle"),
        (["launcher=slurm", "launcher.device=cuda"], "launcher.gpus_per_node=0"),
        (["launcher=slurm", "launcher.backend=nccl"], "needs a GPU"),
        (["launcher=slurm", "launcher.nodes=0"], "out of range"),
        (["launcher=slurm", "launcher.nodes=2", "strategy=single"], "one process"),
        (["launcher=slurm", "launcher.nodez=2"], "did you mean launcher.nodes"),
        (["launcher=kubernetes"], "launcher.image is required"),
        (["launcher.nodes=2"], "belongs to launcher=slurm"),
    ],
)
def test_impossible_jobs_are_one_line(overrides, told):
    with pytest.raises(DtkError, match=told):
        job(*overrides)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["launcher=kubernetes", "launcher.image=x", "launcher.nodes=2"], "volume_claim"),
        ([*KUBERNETES, "launcher.memory_per_node=lots"], "no quantity"),
        ([*KUBERNETES, "launcher.secrets={A: b}"], "SECRET/KEY"),
        ([*KUBERNETES, "launcher.volume_path=runs"], "not absolute"),
        (["launcher=skypilot", "launcher.gpus_per_node=8"], "launcher.accelerator"),
        (["launcher=skypilot", "launcher.nodes=2"], "launcher.bucket"),
        (["launcher=skypilot", "launcher.use_spot=true"], "launcher.bucket"),
        ([*SKYPILOT, "launcher.cloud=null"], "of no cloud"),
    ],
)
def test_what_a_cluster_would_refuse_is_one_line(overrides, told):
    one = job(*overrides)
    with pytest.raises(DtkError, match=told):
        (kubernetes if one.launcher.name == "kubernetes" else skypilot).render(one)


def test_the_ranks_of_a_job():
    assert remote_placement(job("launcher=slurm", *HSDP).config) == Placement(8, "cuda", "nccl", 0, 8, ())
    assert remote_placement(job("launcher=slurm").config).nproc == 2, "as on a laptop without a GPU"
    assert remote_placement(job("launcher=slurm", "strategy=single").config).nproc == 1
    assert job("launcher=slurm", *HSDP).world_size == 16


@pytest.mark.parametrize("name", JOBS)
def test_what_is_frozen_is_what_was_composed(name):
    one = job(*JOBS[name])
    assert from_plain(yaml.safe_load(one.files["config.yaml"])) == one.config
    assert yaml.safe_load(one.files["overrides.yaml"]) == one.typed
    manifest = json.loads(one.files["manifest.json"])
    assert manifest["submitted"]["launcher"] == one.launcher.name and "hardware" not in manifest
