"""What NCCL says it took, read from lines in the formats of its releases."""

import json

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.nccl.effect import NOTHING, keep_effect, summary_lines

V2_18 = """\
NCCL version 2.18.6+cuda12.1
node1:411:411 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
node1:411:411 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eth0
node1:411:500 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
node1:411:500 [0] NCCL INFO NCCL_IB_HCA set to =mlx5_0,mlx5_1
node1:411:500 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:411:500 [0] NCCL INFO Using network IB
node1:411:500 [0] NCCL INFO NVLS multicast support is not available on dev 0
node1:411:500 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
node1:411:500 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read
"""
V2_27 = """\
node1:9:9 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
NCCL version 2.27.3+cuda12.9
node1:9:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.
node1:9:20 [0] NCCL INFO NCCL_NET set by environment to Socket.
node1:9:20 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>
node1:9:20 [0] NCCL INFO Assigned NET plugin Socket to comm
node1:9:20 [0] NCCL INFO Using network Socket
node1:9:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
node1:9:20 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
"""
V2_30 = """\
[2026-05-02 10:00:00] node1:9:20 [0] param.cc:88 (load) NCCL WARN Invalid value 1000 for NCCL_IB_TIMEOUT, using default
node1:9:9 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
"""


@pytest.fixture
def run(tmp_path):
    paths = RunPaths(tmp_path / "run")

    def make(log, variables, kept=(), backend="nccl", files=()):
        for rank in (0, 1):
            folder = paths.logs(0, rank)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stdout.log").write_text(log)
        paths.overrides.write_text("[]")
        for name, text in files:
            (paths.root / name).write_text(text)
        about = {"backend": backend, "preset": "x", "variables": variables, "kept": list(kept), "effect": None}
        paths.manifest.write_text(json.dumps({"run_id": "run", "nccl": about}))
        lines = keep_effect(paths)
        return json.loads(paths.manifest.read_text())["nccl"]["effect"], lines

    return make


def states(effect):
    return {name: variable["state"] for name, variable in effect["variables"].items()}


def test_release_2_18_with_infiniband(run):
    expected = {
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_SL": "0",
    }
    effect, lines = run(V2_18, {**expected, "TORCH_FR_BUFFER_SIZE": "2000"})
    assert states(effect) == {
        "NCCL_IB_TIMEOUT": "confirmed",
        "NCCL_IB_HCA": "confirmed",
        "NCCL_SOCKET_IFNAME": "confirmed",
        "NCCL_IB_SL": "not_told",
    }, "torch's own have no such line"
    assert effect["version"] == ["2.18.6"]
    assert (effect["network"], effect["infiniband_devices"]) == (["IB"], ["mlx5_0", "mlx5_1"])
    assert (effect["gpu_direct_rdma"], effect["nvls"]) == (True, ["not available"])
    assert effect["transports"] == ["NET", "P2P"]
    assert lines == ["NCCL 2.18.6 took: IB over mlx5_0, mlx5_1"]


def test_release_2_27_with_sockets_and_a_value_that_was_misread(run):
    kept = [{"name": "NCCL_IB_DISABLE", "value": "true", "preset": "0", "source": "environment"}]
    effect, lines = run(V2_27, {"NCCL_NET": "Socket", "NCCL_P2P_LEVEL": "5"}, kept)
    assert states(effect) == {"NCCL_NET": "confirmed", "NCCL_P2P_LEVEL": "confirmed", "NCCL_IB_DISABLE": "read_as"}
    assert effect["variables"]["NCCL_IB_DISABLE"] == {"wanted": "true", "got": ["0"], "state": "read_as"}
    assert effect["socket_interfaces"] == ["eth0", "eth1"]
    assert effect["gpu_direct_rdma"] is False
    assert lines[1:] == ["  NCCL_IB_DISABLE=true was read as 0"]


def test_release_2_30_refuses_a_value(run):
    effect, lines = run(V2_30, {"NCCL_IB_TIMEOUT": "1000"})
    assert states(effect) == {"NCCL_IB_TIMEOUT": "refused"}
    assert lines[-1] == "  NCCL_IB_TIMEOUT=1000 was refused: NCCL took its default"


def test_lines_in_files_of_nccls_own_count(run, tmp_path):
    expected = {"NCCL_DEBUG_FILE": f"{tmp_path}/run/nccl.%h.%p.log", "NCCL_IB_TIMEOUT": "22"}
    effect, _ = run("step 1\n", expected, files=[("nccl.node1.411.log", V2_18)])
    assert states(effect)["NCCL_IB_TIMEOUT"] == "confirmed"


def test_silence_is_said_to_be_silence(run):
    assert run("step 1/2 loss 3.0\n", {"NCCL_DEBUG": "WARN"}) == ({"reason": NOTHING}, [])
    assert summary_lines({"reason": NOTHING}) == []


def test_over_gloo_nothing_is_looked_for(run):
    assert run(V2_18, {"NCCL_DEBUG": "WARN"}, backend="gloo") == (None, [])


@pytest.mark.parametrize("text", ["", "[]", '{"nccl": 3}', '{"nccl": {"backend": "nccl"}}', '{"run_id": "x"}'])
def test_a_damaged_manifest_is_left_alone(text, tmp_path):
    paths = RunPaths(tmp_path)
    paths.manifest.write_text(text)
    assert keep_effect(paths) == []
    assert paths.manifest.read_text() == text
