import json

import psutil
import pytest

from tests import nvml_stub
from tests.patience import stretched

# One device whose energy is not supported, and whose temperature fails from the third call on.
ANSWERS = {
    "devices": 1, "driver": "999.1", "0.uuid": "GPU-aaaa-bbbb", "busy": 97, "memory_busy": 41, "memory": 1000,
    "memory_used": 600, "power": 350500, "energy": "!3", "sm_clock": 1410, "memory_clock": 1593, "throttle": 0x24,
    "celsius": 65, "temperature_calls": 2,
}  # fmt: skip

SAMPLE = """
import json, sys, time
from pathlib import Path
from diagnostics.contract.artifacts import RunPaths
from dtk.record.guard import Writer
from dtk.record.guard import JsonLines
from dtk.record.manifest import hardware
from dtk.record.telemetry import Telemetry
writer = Writer("w")
writer.start()
paths = RunPaths(Path(sys.argv[1]))
lines = JsonLines(paths.telemetry(0), writer)
telemetry = Telemetry(lines, paths, 0, 0.05, lambda: json.loads(sys.argv[2]))
telemetry.start()
time.sleep(1.0)
telemetry.close()
writer.close(5)
print(json.dumps(hardware()))
"""


@pytest.fixture
def stub_driver(tmp_path):
    nvml_stub.build(tmp_path, "OLD_DRIVER")  # Which has no nvmlDeviceGetEnforcedPowerLimit.
    answers = nvml_stub.script(tmp_path / "answers", **ANSWERS)
    return {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STUB": str(answers)}


def run(child, paths, uuids, **environment):
    process = child(SAMPLE, paths.root, json.dumps(uuids), **environment)
    output, errors = process.communicate(timeout=stretched(50))
    assert process.returncode == 0, errors
    assert "dtk:" not in errors
    return [json.loads(line) for line in paths.telemetry(0).read_text().splitlines()], json.loads(output)


@pytest.mark.timeout(60)
def test_devices_by_uuid_with_what_they_support(paths, child, stub_driver):
    (about, *samples), hardware = run(child, paths, ["aaaa-bbbb"], **stub_driver)
    (device,) = about["gpu"]
    assert (device["uuid"], device["name"]) == ("GPU-aaaa-bbbb", "Stub GPU")
    assert device["unsupported"] == {"power_limit": "Function Not Found", "energy": "Not Supported"}
    first, last = samples[0]["gpu"][0], samples[-1]["gpu"][0]
    assert first == {
        "index": 0,
        "uuid": "GPU-aaaa-bbbb",
        "utilization_percent": 97,
        "memory_utilization_percent": 41,
        "memory_used_bytes": 600,
        "memory_total_bytes": 1000,
        "power_watts": 350.5,
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1593,
        "throttle_reasons": ["software_power_cap", "software_thermal"],
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "temperature_celsius": 65,
    }
    assert "temperature_celsius" not in last, "a signal that fails is absent, not zero"
    assert last["failed"] == {"temperature": "GPU is lost"}
    assert hardware["gpus"] == [{"index": 0, "name": "Stub GPU", "uuid": "GPU-aaaa-bbbb", "memory_bytes": 1000}]
    assert hardware["nvidia_driver"] == "999.1"


@pytest.mark.timeout(60)
def test_a_device_that_nvml_does_not_know_is_null_with_the_reason(paths, child, stub_driver):
    (about, *samples), _ = run(child, paths, ["cccc"], **stub_driver)
    assert about["gpu"] is None
    assert samples[0]["gpu"] is None
    assert samples[0]["gpu_reason"].startswith("NVML: ")


@pytest.mark.timeout(60)
def test_without_a_gpu_the_host_is_sampled(paths, child):
    (about, *samples), _ = run(child, paths, [])
    assert about["gpu"] is None
    assert about["gpu_reason"]
    assert len(samples) >= 3
    host = samples[-1]["host"]
    assert host["memory_total_bytes"] == psutil.virtual_memory().total
    assert host["rank_rss_bytes"]["0"] > 10 * 2**20
    assert host["rank_core_wait_s"]["0"] >= samples[0]["host"]["rank_core_wait_s"]["0"] >= 0
    assert {"cpu_percent", "network_sent_bytes", "network_drops"} <= host.keys()
    assert 0 <= host["others_cpu_percent"] <= host["cpu_percent"] <= 100
