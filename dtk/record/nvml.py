"""NVML: initialization, devices by UUID (NVML ignores CUDA_VISIBLE_DEVICES) and their signals. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from diagnostics.contract.files import table_beside

EVENT_REASONS, SIGNALS = (table_beside(__file__)[name] for name in ("event_reasons", "signals"))  # Documented there.
MAX_LINKS = 36  # Above NVML_NVLINK_MAX_LINKS of CUDA 12 (18); absent links return "not supported".


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


def _read(
    nvml: Any, handle: Any, of: str, at: str = "", part: str = "", per: float = 1, *, reasons: bool = False
) -> Any:
    answer = getattr(nvml, of)(handle, *([getattr(nvml, at)] if at else []))
    value = getattr(answer, part) if part else answer
    return event_reasons(value) if reasons else value / per if per != 1 else value


def read_signal(nvml: Any, handle: Any, signal: str) -> dict[str, Any]:
    """Return the fields of a signal; pynvml.NVMLError if the device does not support it, or does not answer."""
    return {field: _read(nvml, handle, **row) for field, row in SIGNALS[signal].items()}


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
                values.update(read_signal(nvml, self.handle, signal))
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
    for signal in SIGNALS:
        try:
            read_signal(nvml, handle, signal)
            signals.append(signal)
        except nvml.NVMLError as error:
            unsupported[signal] = str(error)
    return Device(index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), handle, signals, unsupported)
