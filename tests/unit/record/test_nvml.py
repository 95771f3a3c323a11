"""Devices and their signals, of which some may be missing."""

from types import SimpleNamespace

import pytest

from dtk.record.nvml import EVENT_REASONS, SIGNALS, all_devices, event_reasons, find_device, nvlinks


class FakeNvml:
    """The functions of NVML that are called, of two devices; `without` are not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *without):
        self.without = without
        self.requests = []

    def _give(self, name, value):
        if name in self.without:
            raise self.NVMLError("Not Supported")
        return value

    def __getattr__(self, name):
        values = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90, memory=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3, total=8),
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": 5000,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetUUID": "GPU-7",
            "nvmlDeviceGetName": "H200",
        }
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if "HandleBy" in name:
            return lambda key: self.requests.append(key) or key
        return lambda *arguments: self._give(name, values[name])


def test_units_are_those_of_the_names():
    (device, _) = all_devices(FakeNvml())
    assert device.sample(FakeNvml()) == {
        "index": 0, "uuid": "GPU-7", "utilization_percent": 90, "memory_utilization_percent": 40,
        "memory_used_bytes": 3, "memory_total_bytes": 8, "power_watts": 300.0, "power_limit_watts": 700.0,
        "energy_joules": 5.0, "sm_clock_mhz": 1980, "memory_clock_mhz": 1980,
        "throttle_reasons": ["software_power_cap", "software_thermal"], "pcie_generation": 4,
        "pcie_generation_max": 5, "pcie_width": 8, "pcie_width_max": 16, "temperature_celsius": 61,
    }  # fmt: skip


def test_a_signal_that_is_missing_is_named_and_never_zero():
    nvml = FakeNvml("nvmlDeviceGetPowerUsage")
    device = all_devices(nvml)[1]
    assert device.unsupported == {"power": "Not Supported"}
    assert set(device.signals) == set(SIGNALS) - {"power"}
    assert "power_watts" not in device.sample(nvml)


def test_a_signal_that_fails_later_is_listed():
    device = all_devices(FakeNvml())[0]
    sample = device.sample(FakeNvml("nvmlDeviceGetTemperature"))
    assert sample["failed"] == {"temperature": "Not Supported"}
    assert sample["power_watts"] == 300.0


@pytest.mark.parametrize(("uuid", "requests"), [("7", b"GPU-7"), ("GPU-7", b"GPU-7"), ("MIG-7", b"MIG-7")])
def test_a_device_is_found_by_its_uuid_with_or_without_prefix(uuid, requests):
    nvml = FakeNvml()
    assert find_device(nvml, uuid, 3).index == 3
    assert nvml.requests == [requests]


def test_bits_of_reasons():
    assert len(set(EVENT_REASONS)) == len(EVENT_REASONS)
    assert event_reasons(0) == [] and event_reasons(0x1 | 0x20) == ["idle", "software_thermal"]
    assert event_reasons(0x100 | 0x10000) == ["display_clocks"], "a bit that is not known has no name"


class Links:
    """NVML of a device with links; `missing` is what the call raises on a driver without it."""

    class NVMLError_NotSupported(Exception):  # noqa: N801, N818
        pass

    class NVMLError_InvalidArgument(Exception):  # noqa: N801, N818
        pass

    class NVMLError_FunctionNotFound(Exception):  # noqa: N801, N818
        pass

    class NVMLError_NoPermission(Exception):  # noqa: N801, N818
        pass

    def __init__(self, states, missing=None):
        self.states, self.missing = states, missing

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        if self.missing is not None:
            raise self.missing
        if link >= len(self.states):
            raise self.NVMLError_NotSupported
        return self.states[link]


@pytest.mark.parametrize(
    ("nvml", "states"),
    [
        (Links([1, 0, 1]), [True, False, True]),
        (Links([]), []),
        (Links([1], Links.NVMLError_FunctionNotFound()), None),
        (Links([1], Links.NVMLError_NoPermission()), None),
    ],
)
def test_a_driver_that_does_not_know_the_call_has_not_counted_zero_links(nvml, states):
    assert nvlinks(nvml, None) == states
