import json
import subprocess
import sys
from dataclasses import asdict

from dtk.config.compose import compose
from dtk.config.placement import Placement
from dtk.nccl.render import OwnVariable, Rendered
from dtk.record.manifest import environment, git_state, manifest, missing_files, network


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_manifest_says_what_ran_where(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dtk", "run", "strategy=ddp"])
    kept = OwnVariable("NCCL_DEBUG", "INFO", "WARN", "environment")
    nccl = Rendered("infiniband", {"NCCL_IB_TIMEOUT": "22"}, (kept,))
    composed = compose(["strategy=ddp", "parallel.tp=2"])
    placement = Placement(nproc=2, world_size=4, device="cuda", backend="nccl", threads=1, cuda_devices=2, reasons=())
    about = manifest(composed.config, "r1", placement, "local", asdict(nccl))
    about = json.loads(json.dumps(about)) | {"pid": about["pid"]}
    assert about["environment"]["NCCL_IB_TIMEOUT"] == "22"
    assert about["nccl"]["kept"] == [{"name": "NCCL_DEBUG", "value": "INFO", "preset": "WARN", "source": "environment"}]
    assert json.loads(json.dumps(about)) == about
    assert about["argv"] == ["dtk", "run", "strategy=ddp"]
    assert about["topology"]["nodes"] == 2
    order = about["mesh"].pop("order")
    degrees = {"dp_replicate": 2, "dp_shard": 1, "dp_secondary": 1, "cp": 1, "tp": 2, "pp": 1, "ep": 1}
    assert about["mesh"] == {**degrees, "innermost": "tp"} and order == ["pp", "dp_replicate", "dp_shard", "cp", "tp"]
    assert about["hardware"]["cores"] >= 1
    assert about["hardware"]["gpus"] or about["hardware"]["gpu_reason"]
    assert about["versions"]["python"] == sys.version.split()[0]
    assert {"pid", "host", "schema_version", "run_id", "cwd"} <= about.keys()


def test_the_network_is_listed_and_files_that_are_missing(monkeypatch, tmp_path):
    for name in ("net/lo", "net/eth0", "rdma/mlx5_0"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("dtk.record.manifest.INTERFACES", tmp_path / "net")
    monkeypatch.setattr("dtk.record.manifest.RDMA", tmp_path / "rdma")
    assert network() == {"interfaces": ["eth0", "lo"], "infiniband": ["mlx5_0"]}
    monkeypatch.setattr("dtk.record.manifest.RDMA", tmp_path / "absent")
    assert network()["infiniband"] == []
    monkeypatch.setattr("dtk.record.manifest.INTERFACES", tmp_path / "absent")
    assert network() == {"interfaces": None, "infiniband": None}
    there = tmp_path / "topo.xml"
    there.touch()
    monkeypatch.setenv("NCCL_GRAPH_FILE", str(there))
    assert missing_files({"NCCL_TOPO_FILE": "/absent.xml"}) == ["NCCL_TOPO_FILE"]


def test_secrets_are_left_out(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("SLURM_AUTH_TOKEN", "x")
    monkeypatch.setenv("TORCH_API_KEY", "x")
    monkeypatch.setenv("CUDA_PASSWORD", "x")
    monkeypatch.setenv("HOME_SWEET", "x")
    kept = environment()
    assert kept["NCCL_DEBUG"] == "WARN"
    assert not {"SLURM_AUTH_TOKEN", "TORCH_API_KEY", "CUDA_PASSWORD", "HOME_SWEET"} & kept.keys()


def test_git_state_follows_the_working_tree(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1\n")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "first")
    clean = git_state(tmp_path)
    assert (clean["dirty"], clean["diff_sha256"], len(clean["commit"])) == (False, None, 40)
    (tmp_path / "a").write_text("2\n")
    dirty = git_state(tmp_path)
    assert dirty["dirty"]
    (tmp_path / "a").write_text("3\n")
    assert git_state(tmp_path)["diff_sha256"] not in (None, dirty["diff_sha256"])


def test_git_state_tells_new_files_apart(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    below = tmp_path / "below"
    below.mkdir()
    seen = []

    def state():
        seen.append(git_state(below))
        assert seen[-1]["dirty"]
        return seen[-1]["diff_sha256"]

    (tmp_path / "new file").write_text("1\n")
    (tmp_path / "link").symlink_to("nowhere")
    item = state()
    (tmp_path / "ignored").write_text("1\n")
    assert state() == item
    (tmp_path / "new file").write_text("2\n")
    two = state()
    (tmp_path / "new file").rename(tmp_path / "other")
    three = state()
    (tmp_path / "a").write_text("2\n")
    assert len({item, two, three, state()}) == 4
    assert None not in {item, two, three}


def test_new_files_are_hashed_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("dtk.record.manifest.NEW_BYTES", 10)
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    hashes = []
    for content in (b"x" * 20, b"x" * 19 + b"y", b"x" * 21, b"y" * 20):
        (tmp_path / "large").write_bytes(content)
        hashes.append(git_state(tmp_path)["diff_sha256"])
    assert hashes[0] == hashes[1], "what lies beyond the bound is not read"
    assert len(set(hashes)) == 3, "but every size is known"


def test_importing_the_manifest_needs_no_torch():
    code = "import sys, dtk.record.manifest, dtk.record.trackers, dtk.record.flight; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
