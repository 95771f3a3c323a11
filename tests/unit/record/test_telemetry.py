import json
import shutil
import subprocess

import psutil
import pytest

# A libnvidia-ml.so.1 with one device, loaded by the real pynvml: energy is not supported by the device, the
# enforced power limit is missing from the library as in an older driver, and the temperature fails from
# the third call on.
NVML = r"""
#include <string.h>
typedef int ret;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static int temperatures;
ret nvmlInitWithFlags(unsigned int flags) { (void)flags; return 0; }
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret r) { return r == 3 ? "Not Supported" : r == 15 ? "GPU is lost" : "error"; }
ret nvmlSystemGetDriverVersion(char *text, unsigned int n) { strncpy(text, "999.1", n); return 0; }
ret nvmlDeviceGetCount_v2(unsigned int *n) { *n = 1; return 0; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **device) { *device = (void *)7; return i ? 2 : 0; }
ret nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  *device = (void *)7; return strcmp(uuid, "GPU-aaaa-bbbb") ? 6 : 0;
}
ret nvmlDeviceGetUUID(void *d, char *text, unsigned int n) { strncpy(text, "GPU-aaaa-bbbb", n); return 0; }
ret nvmlDeviceGetName(void *d, char *text, unsigned int n) { strncpy(text, "Stub GPU", n); return 0; }
ret nvmlDeviceGetUtilizationRates(void *d, utilization_t *u) { u->gpu = 97; u->memory = 41; return 0; }
ret nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { m->total = 1000; m->free = 400; m->used = 600; return 0; }
ret nvmlDeviceGetPowerUsage(void *d, unsigned int *milliwatts) { *milliwatts = 350500; return 0; }
ret nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *e) { *e = 0; return 3; }
ret nvmlDeviceGetClockInfo(void *d, int kind, unsigned int *mhz) { *mhz = kind == 1 ? 1410 : 1593; return 0; }
ret nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *r) { *r = 0x24; return 0; }
ret nvmlDeviceGetTemperature(void *d, int s, unsigned int *c) { *c = 65; return ++temperatures > 2 ? 15 : 0; }
"""

SAMPLE = """
import json, sys, time
from pathlib import Path
from diagnostics.artifacts import RunPaths
from dtk.record.guard import Writer
from dtk.record.jsonl import JsonLines
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
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stub of libnvidia-ml.so.1 with")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "nvml.c"], check=True)
    return str(tmp_path)


def run(child, paths, uuids, **environment):
    process = child(SAMPLE, paths.root, json.dumps(uuids), **environment)
    output, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    assert "dtk:" not in errors
    return [json.loads(line) for line in paths.telemetry(0).read_text().splitlines()], json.loads(output)


@pytest.mark.timeout(60)
def test_devices_by_uuid_with_what_they_support(paths, child, stub_driver):
    (about, *samples), hardware = run(child, paths, ["aaaa-bbbb"], LD_LIBRARY_PATH=stub_driver)
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
        "temperature_celsius": 65,
    }
    assert "temperature_celsius" not in last, "a signal that fails is absent, not zero"
    assert last["failed"] == {"temperature": "GPU is lost"}
    assert hardware["gpus"] == [{"index": 0, "name": "Stub GPU", "uuid": "GPU-aaaa-bbbb", "memory_bytes": 1000}]
    assert hardware["nvidia_driver"] == "999.1"


@pytest.mark.timeout(60)
def test_a_device_that_nvml_does_not_know_is_null_with_the_reason(paths, child, stub_driver):
    (about, *samples), _ = run(child, paths, ["cccc"], LD_LIBRARY_PATH=stub_driver)
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
    assert {"cpu_percent", "network_sent_bytes", "network_drops"} <= host.keys()
