"""Outputs of `nvidia-smi -q`: clocks, PCIe link and memory errors of each device at one moment (see nvidia-smi(1))."""

import re
from collections.abc import Iterator

from diagnostics.contract.files import table_beside
from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers.timeline import GpuSample

KIND = "gpu_state"
_HEAD = b"==============NVSMI LOG=============="
_TABLE = table_beside(__file__)
_REASONS: dict[str, str] = _TABLE["reasons"]
_NUMBER = re.compile(r"\d{1,9}")


def _devices(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield address and values of each device; a key is the path of headings, `ECC Errors/Volatile/DRAM ...`."""
    for part in re.split(r"^GPU (?=[\dA-Fa-f]{4,8}:)", text, flags=re.MULTILINE)[1:]:
        address, _, rest = part.partition("\n")
        values: dict[str, str] = {}
        path: list[str] = []
        for line in rest.splitlines():
            name, colon, value = (word.strip() for word in line.partition(" : "))
            path = [*path[: max(0, (len(line) - len(line.lstrip())) // 4 - 1)], name]
            if colon:
                values["/".join(path)] = value
        yield address.strip(), values


def _state(file: str, address: str, values: dict[str, str]) -> LogFact:
    def number(end: str) -> float | None:
        matches = (match for key, text in values.items() if key.endswith(end) and (match := _NUMBER.match(text)))
        return next((float(match.group()) for match in matches), None)

    slowed = [key.rpartition("/")[2] for key, text in values.items() if "Reasons/" in key and text == "Active"]
    sample = GpuSample(
        utilization_percent=number("Utilization/Gpu") or number("Utilization/GPU"),
        sm_clock_mhz=number("Clocks/SM"),
        throttle_reasons=[_REASONS[name] for name in slowed if name in _REASONS],
        pcie_generation=number("PCIe Generation/Current"),
        pcie_generation_max=number("PCIe Generation/Max"),
        pcie_width=number("Link Width/Current"),
        pcie_width_max=number("Link Width/Max"),
    )
    faults = (
        xid
        for at, bad, xid in _TABLE["faults"]
        for key in values
        if re.search(at, key) and re.fullmatch(bad, values[key])
    )
    name = values.get("Product Name", "")[:80]
    fields = {"device": address, "name": name, "sample": sample, "xid": next(faults, None)}
    return LogFact(KIND, None, file, 0, f"GPU {address}", fields)


def read(source: Source) -> Contents:
    """Return a fact for each device with its name and address, a `GpuSample`, and its Xid or None."""
    text = whole(source.path, source.limits).decode("utf-8", "replace")
    facts = [_state(source.file, address, values) for address, values in _devices(text)]
    if not facts:
        raise ValueError("no device in it")
    return Contents(source.file, facts=facts)


READER = Reader(
    kind="nvidia_smi",
    title="`nvidia-smi -q` output",
    recognise=lambda head: head.lstrip().startswith(_HEAD),
    open=read,
    facts=(KIND,),
)
