"""What is recommended for machines of many kinds, by facts as the kernel and NVML give them."""

import dataclasses

import pytest

from dtk.nccl.machine import Gpu, Interface, Machine, Rdma, read_machine
from dtk.nccl.presets import read_presets, recommend

H100 = Gpu("NVIDIA H100 80GB HBM3", 18)
BARE = Machine((H100,) * 8, "", "570.10", True, (), (Interface("eth0", "", True),), "", "", False, False, None)
IB = Rdma("mlx5_0", "mlx5_core", "InfiniBand", True)
ROCE = Rdma("mlx5_0", "mlx5_core", "Ethernet", True)
GPUS_4090 = (Gpu("NVIDIA GeForce RTX 4090", 0),) * 2


def gve(count):
    return tuple(Interface(f"eth{i}", "gve", True) for i in range(count))


def chosen(nodes=None, **facts):
    return [item.preset for item in recommend(dataclasses.replace(BARE, **facts), nodes)[0]]


@pytest.mark.parametrize(
    ("facts", "preset"),
    [
        ({}, "tcp_ethernet"),
        ({"rdma": (IB,)}, "infiniband"),
        ({"rdma": (dataclasses.replace(IB, active=False),)}, "tcp_ethernet"),
        ({"rdma": (ROCE,)}, "roce"),
        ({"rdma": (Rdma("rdmap0s6", "efa", "Unspecified", True),), "cloud": "aws"}, "aws_efa"),
        ({"rdma": (IB,), "cloud": "azure"}, "azure_nd"),
        ({"rdma": (ROCE,), "cloud": "oci"}, "oci"),
        ({"rdma": (dataclasses.replace(IB, name="ibp0"),)}, "coreweave"),
        ({"gpus": (Gpu("NVIDIA GB200", 18),) * 4, "rdma": (IB,)}, "gb200_nvl72"),
        ({"cloud": "gcp", "interfaces": gve(5)}, "gcp_a3_high"),
        ({"cloud": "gcp", "interfaces": gve(9)}, "gcp_a3_mega"),
        ({"cloud": "gcp", "interfaces": gve(1)}, "tcp_ethernet"),
    ],
)
def test_several_nodes(facts, preset):
    assert chosen(2, **facts) == [preset]


@pytest.mark.parametrize(
    ("facts", "preset"),
    [
        ({}, "nvlink_single_node"),
        ({"gpus": (Gpu("NVIDIA A10", 0),) * 2}, "auto"),
        ({"gpus": (Gpu("NVIDIA A10", None),) * 2}, "auto"),
        ({"gpus": (H100, Gpu("NVIDIA H100 80GB HBM3", 0))}, "auto"),
        ({"gpus": GPUS_4090, "driver": "535.129.03"}, "pcie_no_p2p"),
        ({"gpus": GPUS_4090, "driver": "550.54.15"}, "auto"),
        ({"gpus": GPUS_4090[:1], "driver": "535.129.03"}, "auto"),
    ],
)
def test_one_node(facts, preset):
    assert chosen(1, **facts) == [preset]


def test_with_unknown_nodes_both_are_answered_with_reasons_and_what_to_give():
    (item, several), besides = recommend(dataclasses.replace(BARE, rdma=(ROCE,), slurm=True), None)
    assert (item.case, item.preset, several.case, several.preset) == (
        "one node",
        "nvlink_single_node",
        "several nodes",
        "roce",
    )
    assert "8 GPUs" in item.because[0] and "18 or more NVLinks" in item.because[1]
    assert "nccl.traffic_class=NUMBER" in several.needs[0]
    assert any("Slurm" in note for note in besides) and any("NCCL_IB_DISABLE" in note for note in besides)


def test_an_interface_is_asked_for_and_not_chosen():
    (advice,), _ = recommend(BARE, 2)
    assert advice.needs == ("nccl.interface=NAME, the interface that connects the nodes (this machine has: eth0)",)


def test_without_a_gpu_it_is_gloo_and_a_small_dev_shm_is_told():
    machine = dataclasses.replace(BARE, gpus=(), gpu_reason="NVML: no driver", container=True, shm_bytes=64 << 20)
    (advice,), besides = recommend(machine, None)
    assert advice.preset == "cpu_gloo" and "NVML: no driver" in advice.because[0]
    assert "64 MiB in /dev/shm" in besides[0]


def test_only_presets_that_exist_are_recommended():
    names = {"cpu_gloo", "nvlink_single_node", "pcie_no_p2p", "auto", "gb200_nvl72", "aws_efa", "azure_nd", "oci"}
    names |= {"coreweave", "infiniband", "roce", "tcp_ethernet", "gcp_a3_high", "gcp_a3_mega", "container", "slurm"}
    assert names <= set(read_presets())


def device(root, path, **files):
    folder = root / path
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


def with_driver(root, folder, name):
    (root / "drivers" / name).mkdir(parents=True, exist_ok=True)
    (folder / "device").mkdir(exist_ok=True)
    (folder / "device" / "driver").symlink_to(root / "drivers" / name)


@pytest.fixture
def efa_node(tmp_path):
    """The /sys of an EC2 instance with two EFA devices, and the root of a container."""
    for name in ("rdmap0s6", "rdmap1s6"):
        port = device(tmp_path, f"class/infiniband/{name}/ports/1", link_layer="Unspecified", state="4: ACTIVE")
        with_driver(tmp_path, port.parents[1], "efa")
    with_driver(tmp_path, device(tmp_path, "class/net/ens5", operstate="up"), "ena")
    device(tmp_path, "class/net/docker0", operstate="down")
    device(tmp_path, "class/net/lo", operstate="unknown")
    device(tmp_path, "class/dmi/id", sys_vendor="Amazon EC2", product_name="p5.48xlarge", chassis_asset_tag="x")
    (tmp_path / ".dockerenv").touch()
    return tmp_path


def test_the_kernels_folders_are_read(efa_node):
    machine = read_machine({"SLURM_JOB_ID": "7"}, efa_node, efa_node)
    assert machine.rdma == (
        Rdma("rdmap0s6", "efa", "Unspecified", True),
        Rdma("rdmap1s6", "efa", "Unspecified", True),
    )
    assert machine.interfaces == (Interface("ens5", "ena", True),)
    assert (machine.cloud, machine.product) == ("aws", "p5.48xlarge")
    assert machine.container and machine.slurm
    ours = dataclasses.replace(machine, gpus=(H100,) * 8, gpu_reason="")
    (advice,), _ = recommend(ours, 2)
    assert advice.because == ("EC2 p5.48xlarge with 2 EFA devices (rdmap0s6, rdmap1s6)",)
