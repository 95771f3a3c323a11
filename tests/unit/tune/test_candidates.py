"""What is tried: sizes that divide, buckets and units around the present ones, presets that can matter."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dtk.config.compose import compose
from dtk.config.schema import Config, NCCLConfig
from dtk.errors import DtkError
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.tune.candidates import buckets, micro_batch_sizes, presets, units
from dtk.tune.make import usable_presets


@cache
def shipped() -> Config:
    return compose([]).config


def config(**values: object) -> Config:
    return replace(shipped(), **values)  # type: ignore[arg-type]


def test_micro_batches_divide_the_share_of_a_rank() -> None:
    base = config()
    text = replace(base, train=replace(base.train, global_batch_size=48))
    assert micro_batch_sizes(text, 2, None) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert micro_batch_sizes(text, 2, 7) == [1, 2, 3, 4, 6]
    for size in micro_batch_sizes(text, 4, None):
        assert 48 % (4 * size) == 0
    with pytest.raises(DtkError, match="cannot be split over 5 ranks"):
        micro_batch_sizes(text, 5, None)


def test_the_present_value_is_first_and_there_once() -> None:
    candidates = buckets(config(strategy=DDPConfig(bucket_cap_mb=25.0)), 2, [])
    assert [candidate.override for candidate in candidates][:2] == [
        "strategy.bucket_cap_mb=25",
        "strategy.bucket_cap_mb=1",
    ]
    assert [candidate.present for candidate in candidates] == [True] + [False] * 4
    own = buckets(config(strategy=DDPConfig(bucket_cap_mb=7.5)), 2, ["0.5", "7.5"])
    assert [item.value for item in own] == ["7.5", "0.5"]


def test_units_go_up_to_the_whole_model() -> None:
    base = config(strategy=FSDPConfig(blocks_per_unit=1))
    text = replace(base, model=replace(base.model, layers=12))
    assert [candidate.value for candidate in units(text, 2, [])] == ["1", "2", "4", "8", "0"]


def test_what_cannot_be_tuned_is_one_line() -> None:
    for call, text in (
        (lambda: buckets(config(strategy=FSDPConfig()), 2, []), "has no buckets"),
        (lambda: units(config(strategy=DDPConfig()), 2, []), "wraps no units"),
        (lambda: buckets(config(strategy=DDPConfig()), 2, ["-1"]), "is not a bucket size"),
        (lambda: buckets(config(strategy=DDPConfig()), 2, ["nan"]), "is not a bucket size"),
        (lambda: units(config(strategy=FSDPConfig()), 2, ["1.5"]), "is not a number of blocks"),
        (lambda: presets("auto", [], []), "no preset that is tried automatically differs from auto"),
    ):
        with pytest.raises(DtkError, match=text) as error:
            call()
        assert "\n" not in str(error.value) and error.value.fix


def test_the_strategy_that_runs_on_the_mesh_decides() -> None:
    """Under tensor parallelism `ddp` and `zero1` average unit by unit, without a key for the size of units."""
    base = shipped()
    cut = replace(base, parallel=replace(base.parallel, tp=2))
    for strategy in (DDPConfig(), Zero1Config()):
        job = replace(cut, strategy=strategy)
        with pytest.raises(DtkError, match=f"strategy={strategy.name} parallel.tp=2 has no buckets") as error:
            buckets(job, 2, [])
        assert error.value.fix.startswith("use strategy=ddp parallel.tp=1;")
        with pytest.raises(DtkError, match="wraps no units of a size to choose") as error:
            units(job, 2, [])
        assert error.value.fix.startswith("use strategy=fsdp;")
    assert len(units(replace(cut, strategy=FSDPConfig()), 2, [])) > 1
    staged = replace(base, parallel=replace(base.parallel, pp=2), strategy=DDPConfig())
    assert len(buckets(staged, 2, [])) == 5, "a stage has whole parameters"


def test_presets_that_cannot_matter_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On gloo NCCL's variables do nothing; on NCCL those for one node are tried, and the user's own always."""
    for name in ("NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nccl").mkdir()
    for name, variable in (("mine", "GLOO_MINE"), ("twin", "GLOO_MINE")):
        text = f"# Mine.\n# Use: python -m dtk.run nccl={name}\nname: {name}\nvariables: {{{variable}: x}}\n"
        (tmp_path / "nccl" / f"{name}.yaml").write_text(text)
    assert usable_presets(config(nccl=NCCLConfig()), "gloo", None) == []
    assert usable_presets(config(nccl=NCCLConfig()), "gloo", tmp_path) == ["mine"]
    on_nccl = usable_presets(config(nccl=NCCLConfig()), "nccl", None)
    assert "pcie_no_p2p" in on_nccl
    assert not {"infiniband", "aws_efa", "debug_net", "isolate_network", "cpu_gloo"} & set(on_nccl)
