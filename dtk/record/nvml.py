"""NVML: initialization, devices by UUID (NVML ignores CUDA_VISIBLE_DEVICES) and their signals. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

EVENT_REASONS = (
    "idle", "application_clocks", "software_power_cap", "hardware_slowdown", "sync_boost", "software_thermal",
    "hardware_thermal", "hardware_power_brake", "display_clocks",
)  # fmt: skip
"""Names of the bits of nvmlDeviceGetCurrentClocksEventReasons, from the lowest on (nvml.h)."""

MAX_LINKS = 36  # Above NVML_NVLINK_MAX_LINKS of CUDA 12 (18); absent links return "not supported".

Read = Callable[[Any, Any], dict[str, Any]]


def event_reasons(bits: int) -> list[str]:
    """Return the names of the clock event reasons that are set."""
    return [name for bit, name in enumerate(EVENT_REASONS) if bits >> bit & 1]


def open_nvml() -> tuple[Any, str]:
    """Return the initialized NVML module, or None and the reason (no package, no driver, no device)."""
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return pynvml, ""


def ask(nvml: Any, call: str, *arguments: Any) -> Any:
    """Return the result of `nvmlDevice<call>`, None if it is not supported; pynvml.NVMLError if the device is lost."""
    try:
        return getattr(nvml, f"nvmlDevice{call}")(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_NoPermission,
        AttributeError,
    ):
        return None


def nvlinks(nvml: Any, handle: Any) -> list[bool] | None:
    """Return whether each NVLink of a device is up, None if unknown; pynvml.NVMLError if the device does not answer."""
    states: list[bool] = []
    for link in range(MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):  # There are no further links.
            break
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission, AttributeError):
            return None
    return states


def _fields(answer: Any, **names: str) -> dict[str, Any]:
    return {name: getattr(answer, of) for name, of in names.items()}


SIGNALS: dict[str, Read] = {
    "utilization": lambda nvml, handle: _fields(
        nvml.nvmlDeviceGetUtilizationRates(handle), utilization_percent="gpu", memory_utilization_percent="memory"
    ),
    "memory": lambda nvml, handle: _fields(
        nvml.nvmlDeviceGetMemoryInfo(handle), memory_used_bytes="used", memory_total_bytes="total"
    ),
    "power": lambda nvml, handle: {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
    "power_limit": lambda nvml, handle: {"power_limit_watts": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3},
    "energy": lambda nvml, handle: {"energy_joules": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3},
    "sm_clock": lambda nvml, handle: {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
    "memory_clock": lambda nvml, handle: {"memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)},
    "throttle": lambda nvml, handle: {
        "throttle_reasons": event_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    },
    "pcie": lambda nvml, handle: {
        f"pcie_{what}{suffix}": getattr(nvml, f"nvmlDeviceGet{which}PcieLink{what.title()}")(handle)
        for which, suffix in (("Curr", ""), ("Max", "_max"))
        for what in ("generation", "width")
    },
    "temperature": lambda nvml, handle: {
        "temperature_celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    },
}
"""Name of a signal -> function that reads it, in well under a millisecond."""


@dataclass(slots=True)
class Device:
    """A GPU and the signals that it supports."""

    index: int
    """CUDA device index in this process."""
    uuid: str
    name: str
    handle: Any
    signals: list[str]
    unsupported: dict[str, str]
    """Signal -> NVML's reason."""

    def sample(self, nvml: Any) -> dict[str, Any]:
        """Return the current value of every supported signal; those that fail are listed under `failed`."""
        values: dict[str, Any] = {"index": self.index, "uuid": self.uuid}
        failed = {}
        for signal in self.signals:
            try:
                values.update(SIGNALS[signal](nvml, self.handle))
            except nvml.NVMLError as error:
                failed[signal] = str(error)
        return {**values, "failed": failed} if failed else values


def find_device(nvml: Any, uuid: str, index: int) -> Device:
    """Find a device by UUID, also without `GPU-`, and probe each signal once; pynvml.NVMLError if there is none."""
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return _probe(nvml, nvml.nvmlDeviceGetHandleByUUID(full.encode()), index)


def all_devices(nvml: Any) -> list[Device]:
    """Return every device of the machine in NVML's order; pynvml.NVMLError if the driver does not answer."""
    return [_probe(nvml, nvml.nvmlDeviceGetHandleByIndex(i), i) for i in range(nvml.nvmlDeviceGetCount())]


def _probe(nvml: Any, handle: Any, index: int) -> Device:
    signals, unsupported = [], {}
    for signal, read in SIGNALS.items():
        try:
            read(nvml, handle)
            signals.append(signal)
        except nvml.NVMLError as error:
            unsupported[signal] = str(error)
    return Device(index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), handle, signals, unsupported)
