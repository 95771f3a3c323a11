"""From overrides and presets to what is measured: sides, the user's own variables, and what is refused."""

import pytest

from dtk.bench.measure import choose
from dtk.bench.model import AS_IS, Side
from dtk.config.placement import Placement
from dtk.errors import DtkError

HERE = ["launcher.device=cpu", "launcher.nproc=2"]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_CONF_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.delenv(name, raising=False)


def chosen(*overrides: str, presets: tuple[str, ...] = ()) -> tuple[Placement, tuple[Side, ...]]:
    return choose([*HERE, *overrides], presets, None, 0, None)


def test_one_side_has_the_name_of_its_preset_unless_it_sets_nothing() -> None:
    placement, sides = chosen("nccl=cpu_gloo", "nccl.interface=lo")
    assert [side.name for side in sides] == ["cpu_gloo"]
    assert sides[0].variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert (placement.nproc, placement.backend) == (2, "gloo")
    _, empty = chosen("nccl=auto", "nccl.variables={}")
    assert [side.name for side in empty] in ([AS_IS], ["auto"])


def test_what_the_user_has_set_is_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    _, (side,) = chosen("nccl=cpu_gloo", "nccl.interface=lo")
    assert side.kept == {"GLOO_SOCKET_IFNAME": "eth7"} and side.variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert side.effective["GLOO_SOCKET_IFNAME"] == "eth7"


def test_the_same_preset_twice_measures_the_noise() -> None:
    _, sides = chosen("nccl.interface=lo", presets=("auto", "auto"))
    assert [side.name for side in sides] == ["auto", "auto again"]


@pytest.mark.parametrize(
    ("overrides", "presets", "what"),
    [
        (["model=gpt2_tiny"], (), "changes no collective"),
        (["+train.steps=3"], (), "changes no collective"),
        (["nccl=auto"], ("auto", "cpu_gloo"), "both choose presets"),
        (["nccl=nothing_like_it"], (), "nothing_like_it"),
        (["launcher=slurm"], (), "submits training"),
        (["nccl=infiniband"], (), "these ranks communicate over gloo"),
    ],
)
def test_what_means_nothing_here_is_refused(overrides: list[str], presets: tuple[str, ...], what: str) -> None:
    with pytest.raises(DtkError) as refused:
        chosen(*overrides, presets=presets)
    assert what in str(refused.value)
