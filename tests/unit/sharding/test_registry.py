"""The registry is the folder: names, traits without torch, and how a diagnosis reads them."""

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.strategy_traits import strategy_traits
from dtk.errors import DtkError
from dtk.sharding.registry import (
    CONFIG_TYPES,
    alternatives,
    for_several_ranks,
    needs_less_memory,
    one_device,
    preferred,
)
from dtk.sharding.traits import STATES, Traits
from tests.patience import stretched
from tests.traits import traits_of


def test_the_simplest_comes_first() -> None:
    own = ["single", "dp", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
    names = list(CONFIG_TYPES)
    assert [name for name in names if name in own] == own and len(CONFIG_TYPES) == len(names)
    assert names == sorted(names, key=lambda name: (CONFIG_TYPES[name].traits.simplicity, name))
    assert "base" not in CONFIG_TYPES and "registry" not in CONFIG_TYPES
    assert (preferred("units"), preferred("buckets")) == ("fsdp", "ddp")


def test_advice_follows_from_traits_and_prefers_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert for_several_ranks() == "strategy=ddp or strategy=fsdp"
    assert alternatives(lambda traits: traits.replicated_over == "dp_replicate") == "strategy=hsdp"
    assert alternatives(lambda traits: bool(traits.library)) == "strategy=deepspeed_zero1 or strategy=deepspeed_zero3"
    simpler = dataclasses.replace(CONFIG_TYPES["ddp"].traits, simplicity=1)
    monkeypatch.setattr(CONFIG_TYPES["zero1"], "traits", simpler)
    assert for_several_ranks() == "strategy=zero1 or strategy=fsdp", "the order is that of the traits"


def test_code_outside_of_the_strategies_names_none() -> None:
    names = "|".join(CONFIG_TYPES)
    alone = "|".join(name for name in CONFIG_TYPES if name not in ("dp", "single"))  # These are also other words.
    named = re.compile(rf"strategy=(?:{names})\b|strategy=zero$|engine=native|^(?:{alone})$")
    root = Path(__file__).parents[3]
    listed = set()
    for path in [*(root / "dtk").rglob("*.py"), *(root / "diagnostics").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        if any(named.search(str(node.value)) for node in nodes if id(node) not in documented):
            listed.add(path.relative_to(root))
    texts = [path for part in ("dtk", "diagnostics") for path in (root / part).rglob("*.yaml")]
    listed |= {path.relative_to(root) for path in texts if re.search(rf"\bstrategy=(?:{names})\b", path.read_text())}
    assert not {path for path in listed if path.parent.name != "strategies"}


@pytest.mark.parametrize("name", CONFIG_TYPES)
def test_a_section_has_the_name_of_its_file(name: str) -> None:
    section: Any = CONFIG_TYPES[name]()
    assert section.name == name
    assert all((section.summary(), *section.kept, section.collectives, section.sent, section.use_when))
    assert set(section.limits) <= {field.name for field in dataclasses.fields(section)}


@pytest.mark.parametrize("name", CONFIG_TYPES)
def test_the_row_shows_a_shard_of_what_the_traits_call_sharded(name: str) -> None:
    kept, traits = CONFIG_TYPES[name].kept, CONFIG_TYPES[name].traits
    assert [state for state, size in zip(STATES, kept, strict=True) if "/" in size] == [*traits.sharded]


def test_a_strategy_that_needs_less_memory_shards_all_and_is_of_the_same_library() -> None:
    less = {name: needs_less_memory(kind.traits) for name, kind in CONFIG_TYPES.items()}
    assert {name for name, other in less.items() if other is None} == {"fsdp", "zero3", "deepspeed_zero3"}
    assert {other for name, other in less.items() if not CONFIG_TYPES[name].traits.library} == {"zero3", None}
    assert less["deepspeed_zero1"] == less["deepspeed_zero2"] == "deepspeed_zero3"
    assert needs_less_memory(Traits(library="of nobody")) is None


def test_traits_are_read_without_torch() -> None:
    code = (
        "import sys; from dtk.sharding.registry import CONFIG_TYPES; "
        "print([kind.traits.sharded for kind in CONFIG_TYPES.values()]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=stretched(60))


def test_only_the_chosen_file_is_read() -> None:
    code = (
        "import sys; from dtk.config.strict import kind_of; kind_of('strategy', {'name': 'single'}); "
        "assert 'dtk.strategies.single' in sys.modules and 'dtk.strategies.fsdp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=stretched(60))


@pytest.mark.parametrize("name", [name for name, kind in CONFIG_TYPES.items() if not kind.traits.library])
def test_a_diagnosis_reads_the_traits_that_a_run_records(name: str) -> None:
    traits, read = CONFIG_TYPES[name].traits, traits_of(name)
    assert (read.name, read.is_known, read.sharded) == (name, True, frozenset(traits.sharded))
    assert (read.sharded == {"optimizer_state"}) == traits.deals_out_parameters


@pytest.mark.parametrize(
    "traits", [None, [], {"sharded": 3, "replicated_over": 1, "gradients_in": []}, {"sharded": [1]}]
)
def test_damaged_traits_say_nothing(traits: Any) -> None:
    result = strategy_traits({"strategy_traits": traits}, {"strategy": {"name": "mine"}})
    assert (result.sharded, result.replicated_over, result.gradients_in) == (frozenset(), None, None)
    assert result.is_known == isinstance(traits, dict)
    assert not strategy_traits({}, {"strategy": "ddp"}).is_known


def test_meshes() -> None:
    hsdp: Any = CONFIG_TYPES["hsdp"]
    assert hsdp(dp_replicate=-1, dp_shard=4).mesh(8).dp_replicate == 2
    assert CONFIG_TYPES["fsdp"]().mesh(8).dp_shard == 8
    assert CONFIG_TYPES["ddp"]().mesh(8).dp_replicate == 8
    with pytest.raises(DtkError, match="valid dp_replicate x dp_shard: 6 x 1, 3 x 2, 2 x 3, 1 x 6"):
        hsdp(dp_replicate=4).mesh(6)
    assert Traits().dimensions == ("dp_replicate", "dp_shard")


def test_one_device_is_the_strategy_that_needs_no_other() -> None:
    section = one_device()
    assert section.name == "single" and section == CONFIG_TYPES["single"](name="single")
    assert CONFIG_TYPES["dp"].traits.one_process, "which needs two devices"
