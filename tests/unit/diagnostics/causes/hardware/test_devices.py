"""What the causes about single devices share: the worst is named, and a device that nobody looked at leaves it open."""

from pathlib import Path

import pytest

from diagnostics.analysis.node_health import DeviceHealth, NodeHealth, node_health
from diagnostics.causes.hardware import _devices
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.causes.nodes import telemetry

TOY = """
cause: {title: toy, outcome: slow, branch: hardware, decided_from: logs, remedy: none, ruled_out_by: logs, source: me}
texts:
  fix: {remedies: [{kind: code, change: repair it, why: it is slow}]}
  slow: has {mhz} MHz
"""


@pytest.fixture
def cause(tmp_path: Path) -> Cause[tuple[NodeHealth, ...]]:
    """A cause about devices below 1,500 MHz."""
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/toy.yaml").write_text(TOY)
    file = str(tmp_path / "hardware/toy.py")
    texts = _devices.Texts(file)

    def badness(device: DeviceHealth) -> float:
        return max(0.0, 1500 - (device.clock_mhz or 1500))

    def words(worst: DeviceHealth, devices: object) -> tuple[_devices.Phrase, str]:
        return texts.phrase("slow", mhz=round(worst.clock_mhz or 0)), f"{worst.clock_mhz:.0f} MHz"

    return _devices.device_cause(file, lambda device: device.samples > 0, badness, words)


def nodes(folder: Path, *gpus: dict[str, object]) -> tuple[NodeHealth, ...]:
    (folder / "node_00000.jsonl").write_text(telemetry(gpus=gpus))
    return node_health(gather(folder, Limits()))


def test_the_worst_device_is_named_and_the_others_are_counted(tmp_path: Path, cause: Cause) -> None:  # type: ignore[type-arg]
    (finding,) = cause.decide(nodes(tmp_path, {"sm_clock_mhz": 1200}, {}, {"sm_clock_mhz": 900}))
    assert (finding.cause, finding.status, finding.confidence) == ("hardware.toy", "confirmed", 0.9)
    assert [item.kind for item in finding.evidence] == ["telemetry"] * 2
    text = text_of(finding)
    assert "GPU 2" in text.summary and "has 900 MHz" in text.summary and "1 more device" in text.summary
    assert text.remedies[0].change == "repair it" and len(text.remedies) == 2


def test_devices_that_are_well_rule_it_out(tmp_path: Path, cause: Cause) -> None:  # type: ignore[type-arg]
    (finding,) = cause.decide(nodes(tmp_path, {}, {}))
    assert finding.status == "ruled_out" and "2 devices" in text_of(finding).measured


def test_without_a_device_it_is_open(tmp_path: Path, cause: Cause) -> None:  # type: ignore[type-arg]
    (finding,) = cause.decide(nodes(tmp_path))
    assert finding.status == "undecided" and "nvidia-smi" in text_of(finding).missing
