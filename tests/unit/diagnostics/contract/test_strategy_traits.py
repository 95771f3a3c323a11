"""Traits of a run's strategy: those that the manifest states; never a guess."""

import pytest

from diagnostics.contract.strategy_traits import UNKNOWN, strategy_traits

ZERO3 = {"sharded": ["parameters", "gradients", "optimizer_state"], "replicated_over": None, "gradients_in": "units"}


def config(name: object) -> dict[str, object]:
    return {"strategy": {"name": name}}


def test_the_manifest_says_what_the_strategy_is_like() -> None:
    traits = strategy_traits({"strategy_traits": {**ZERO3, "keeps_gathered": True}}, config("mine"))
    assert traits.is_known and traits.name == "mine" and traits.shards_parameters
    assert (traits.gradients_in, traits.replicated_over, traits.keeps_gathered) == ("units", None, True)


def test_of_a_name_alone_nothing_follows() -> None:
    traits = strategy_traits({}, config("ddp"))
    assert traits.name == "ddp" and not traits.is_known and not traits.sharded


@pytest.mark.parametrize("value", [{}, {"strategy": "ddp"}, config(""), config(3), config(None), config(["ddp"])])
def test_a_configuration_without_a_name_is_unknown(value: dict[str, object]) -> None:
    assert strategy_traits({"strategy_traits": ZERO3}, value) is UNKNOWN


@pytest.mark.parametrize(
    "recorded",
    [{"sharded": "parameters"}, {"sharded": [3, None]}, {"replicated_over": 3, "gradients_in": ["units"]},
     {"keeps_gathered": "yes", "keeps_gradients": 1}, {"needs_less_memory": ""},
     {"sharded": "\ud800", "keeps_gathered": "\ud800"}],
)  # fmt: skip
def test_traits_of_another_type_are_passed_over(recorded: dict[str, object]) -> None:
    traits = strategy_traits({"strategy_traits": recorded}, config("ddp"))
    assert traits.is_known and not traits.sharded and traits.replicated_over is None and traits.gradients_in is None
    assert not traits.keeps_gathered and not traits.keeps_gradients and traits.needs_less_memory is None
