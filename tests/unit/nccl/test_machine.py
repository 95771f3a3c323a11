"""Facts of a machine, from a /sys and a root of the test's own: network, RDMA, cloud, container, shared memory."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.nccl.machine import Gpu, Machine, read_machine


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def driver(device: Path, name: str) -> None:
    target = device.parents[2] / "drivers" / name
    target.mkdir(parents=True, exist_ok=True)
    (device / "device").mkdir(parents=True, exist_ok=True)
    (device / "device" / "driver").symlink_to(target)


def read(tmp_path: Path, **environment: str) -> Machine:
    return read_machine(environment, tmp_path / "sys", tmp_path)


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    machine = read(tmp_path)
    assert (machine.rdma, machine.interfaces, machine.cloud, machine.product) == ((), (), "", "")
    assert (machine.container, machine.slurm, machine.shm_bytes) == (False, False, None)


def test_interfaces_that_leave_the_machine_and_their_drivers(tmp_path: Path) -> None:
    net = tmp_path / "sys" / "class" / "net"
    for name, state in {"eth1": "down", "eth0": "up", "lo": "unknown", "docker0": "up", "veth1": "up"}.items():
        put(net / name / "operstate", state)
    driver(net / "eth0", "gve")
    assert [(interface.name, interface.driver, interface.up) for interface in read(tmp_path).interfaces] == [
        ("eth0", "gve", True),
        ("eth1", "", False),
    ]


def test_rdma_devices_with_the_first_link_layer_that_is_told(tmp_path: Path) -> None:
    cards = tmp_path / "sys" / "class" / "infiniband"
    put(cards / "mlx5_0" / "ports" / "1" / "state", "1: DOWN")
    put(cards / "mlx5_0" / "ports" / "2" / "state", "4: ACTIVE")
    put(cards / "mlx5_0" / "ports" / "2" / "link_layer", "InfiniBand")
    put(cards / "rdmap0" / "ports" / "1" / "state", "1: DOWN")
    driver(cards / "rdmap0", "efa")
    first, second = read(tmp_path).rdma
    assert (first.name, first.driver, first.link_layer, first.active) == ("mlx5_0", "", "InfiniBand", True)
    assert (second.name, second.driver, second.link_layer, second.active) == ("rdmap0", "efa", "", False)


@pytest.mark.parametrize(
    ("vendor", "tag", "cloud"),
    [
        ("Amazon EC2", "", "aws"),
        ("Google", "", "gcp"),
        ("Microsoft Corporation", "", "azure"),
        ("QEMU", "OracleCloud.com", "oci"),
        ("Dell Inc.", "", ""),
    ],
)
def test_the_cloud_by_what_dmi_says(tmp_path: Path, vendor: str, tag: str, cloud: str) -> None:
    dmi = tmp_path / "sys" / "class" / "dmi" / "id"
    put(dmi / "sys_vendor", vendor)
    put(dmi / "chassis_asset_tag", tag)
    put(dmi / "product_name", "p5.48xlarge")
    machine = read(tmp_path)
    assert (machine.cloud, machine.product) == (cloud, "p5.48xlarge")


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", ""])
def test_containers_and_slurm(tmp_path: Path, mark: str) -> None:
    if mark:
        put(tmp_path / mark, "")
    assert read(tmp_path).container is bool(mark)
    assert read(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1").container
    assert read(tmp_path, SLURM_JOB_ID="7").slurm


def test_shared_memory_is_measured(tmp_path: Path) -> None:
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    size = read(tmp_path).shm_bytes
    assert size is not None and size > 0


@pytest.mark.parametrize(
    ("links", "nvlink"), [((), None), ((18,), None), ((18, 18), True), ((18, 0), False), ((18, None), None)]
)
def test_nvlink_needs_links_on_every_device(tmp_path: Path, links: tuple[int | None, ...], nvlink: bool | None) -> None:
    gpus = tuple(Gpu("H100", count) for count in links)
    machine = Machine(gpus, "", "", None, (), (), "", "", False, False, None)
    assert machine.nvlink is nvlink


NVML = r"""
#include <string.h>
#include <stdlib.h>
typedef int ret;
static const char *set(const char *name, const char *other) { const char *t = getenv(name); return t ? t : other; }
ret nvmlInitWithFlags(unsigned int flags) { return atoi(set("STUB_INIT", "0")); }
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret r) { return r == 3 ? "Not Supported" : r == 9 ? "Driver Not Loaded" : "error"; }
ret nvmlSystemGetDriverVersion(char *text, unsigned int n) { strncpy(text, set("STUB_DRIVER", "570.10"), n); return 0; }
ret nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return 0; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **device) { *device = (void *)(long)(i + 1); return 0; }
ret nvmlDeviceGetName(void *d, char *text, unsigned int n) {
  strncpy(text, set("STUB_NAME", "NVIDIA A100-SXM4"), n); return 0;
}
ret nvmlDeviceGetNvLinkState(void *d, unsigned int link, unsigned int *up) {
  int links = atoi(set("STUB_LINKS", "12"));
  if (links < 0) return 3;
  *up = d == (void *)2 || link != 3; /* one link of the first GPU is down */
  return (int)link < links ? 0 : 2;
}
ret nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status) { *status = atoi(set("STUB_P2P", "0")); return 0; }
"""


LOOK = (
    "import dataclasses, json; from dtk.nccl.machine import read_machine; "
    "print(json.dumps(dataclasses.asdict(read_machine({}))))"
)


@pytest.fixture(scope="module")
def stub_driver(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stub of libnvidia-ml.so.1 with")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"]
    subprocess.run(command, check=True)
    return folder


def look(folder, **stub):
    environment = {"LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **stub}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_links_and_pairs_by_nvml(stub_driver):
    machine = look(stub_driver)
    assert machine["gpus"] == [
        {"name": "NVIDIA A100-SXM4", "nvlinks": 11},
        {"name": "NVIDIA A100-SXM4", "nvlinks": 12},
    ]
    assert (machine["driver"], machine["p2p"], machine["gpu_reason"]) == ("570.10", True, "")


def test_cards_without_links(stub_driver):
    machine = look(stub_driver, STUB_LINKS="-1", STUB_P2P="1", STUB_NAME="NVIDIA GeForce RTX 4090")
    assert [gpu["nvlinks"] for gpu in machine["gpus"]] == [0, 0]
    assert machine["p2p"] is False


def test_a_driver_that_is_not_loaded(stub_driver):
    machine = look(stub_driver, STUB_INIT="9")
    assert machine["gpus"] == [] and machine["gpu_reason"] == "NVML: Driver Not Loaded"
