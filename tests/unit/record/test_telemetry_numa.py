"""NUMA nodes of CPUs and devices, from trees of sysfs and from this machine's."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtk.record.telemetry import device_numa_node, numa_nodes

PCI = SimpleNamespace(domain=0, bus=0x65, device=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two nodes with two CPUs each."""
    for node in (0, 1):
        for cpu in (2 * node, 2 * node + 1):
            (tmp_path / f"devices/system/node/node{node}/cpu{cpu}").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("cpus", "nodes"), [((0,), [0]), ((2, 3), [1]), ((1, 2), [0, 1]), ((9,), []), ((), [])])
def test_nodes_of_cpus(root: Path, cpus: tuple[int, ...], nodes: list[int]) -> None:
    assert numa_nodes(cpus, root) == nodes


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", -1), (None, -1)])
def test_node_of_a_device(root: Path, text: str | None, node: int) -> None:
    if text is not None:
        folder = root / "bus/pci/devices/0000:65:01.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(text)
    assert device_numa_node(PCI, root) == node


@pytest.mark.skipif(not Path("/sys/devices/system/node/node0").is_dir(), reason="needs sysfs with NUMA nodes")
def test_of_this_machine() -> None:
    assert set(numa_nodes(tuple(os.sched_getaffinity(0)))) <= {
        int(path.name[4:]) for path in Path("/sys/devices/system/node").glob("node[0-9]*")
    }
    assert numa_nodes(tuple(os.sched_getaffinity(0)))
