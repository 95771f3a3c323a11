"""Composing: each mistake is one line with its way out, and each shipped file composes."""

import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dtk.config.compose import compose, expand, files_merged, lists_of_files
from dtk.config.folders import conf_folder, groups
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig

OPTIONS = {group: list(options) for group, options in groups([conf_folder()]).items()}
STRATEGIES = (
    "3d, ddp, deepspeed_zero1, deepspeed_zero2, deepspeed_zero3, dp, fsdp, hsdp, hsdp_tp, moe, pp, ring, single, tp, "
    "ulysses, zero1, zero2, zero3, zeropp"
)
NEEDED = {
    "text": ["data.path=x"],
    "tokens": ["data.path=x"],
    "hf": ["data.path=x"],
    "kubernetes": ["launcher.image=x"],
    "custom": ["{group}._target_=a.B"],
    "model=hf": ["model.path=x", "model.vocab_size=256", "model.context_length=64"],
    "gpt2_124m": ["data.path=x"],
}
"""Option -> what it requires the user to give."""


LISTS = "use -m with lists, typed or as hydra.sweeper.params of a file"
FOLDERS = "run folders: runs_folder=PATH, which may hold ${strategy.name} or ${now:%Y-%m-%d}"


def message(*overrides: str, config_dir: Path | None = None) -> str:
    with pytest.raises(DtkError) as caught:
        compose(list(overrides), config_dir)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_defaults_are_those_of_the_main_job() -> None:
    config = compose([]).config
    assert (config.model.name, config.data.name, config.strategy.name) == ("gpt2", "stdlib", "fsdp")
    assert (config.precision.name, config.optimizer.name, config.schedule.name) == ("fp32", "adamw", "cosine")
    assert (config.record.level, config.tracker.name, config.nccl.name) == ("light", "none", "auto")


@pytest.mark.parametrize(("group", "option"), [(g, o) for g, names in OPTIONS.items() for o in names])
def test_every_shipped_option_composes_and_survives_the_run_folder(group: str, option: str) -> None:
    needed = NEEDED.get(f"{group}={option}", NEEDED.get(option, []))
    composed = compose([f"{group}={option}", *(text.format(group=group) for text in needed)])
    assert from_plain(composed.plain) == composed.config


@pytest.mark.parametrize("experiment", OPTIONS["experiment"])
@pytest.mark.parametrize("strategy", OPTIONS["strategy"])
def test_every_experiment_goes_with_every_strategy(experiment: str, strategy: str) -> None:
    config = compose([f"strategy={strategy}", f"experiment={experiment}", *NEEDED.get(experiment, [])]).config
    preset = OmegaConf.load(conf_folder() / "strategy" / f"{strategy}.yaml").get("strategy", {})
    assert config.strategy.name == preset.get("name", strategy), "a preset of the mesh names the strategy that it sets"


def test_experiments_leave_every_other_choice_free() -> None:
    choices = ["checkpoint=off", "record=off", "optimizer=sgd", "schedule=constant", "precision=fp32"]
    for experiment in OPTIONS["experiment"]:
        config = compose([f"experiment={experiment}", *choices, *NEEDED.get(experiment, [])]).config
        assert (config.optimizer.name, config.schedule.name) == ("sgd", "constant")
        assert (config.record.level, config.checkpoint.every) == ("off", 0)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["strategy=fsd"],
            f'unknown strategy "fsd" - did you mean strategy=fsdp? options: {STRATEGIES}',
        ),
        (["strategy=[ddp]"], f'unknown strategy "[ddp]" - options: {STRATEGIES}'),
        (["stratgy=ddp"], 'unknown key "stratgy" - did you mean strategy?'),
        (["train.stpes=1"], 'unknown key "train.stpes" - did you mean train.steps?'),
        (["+train.stpes=1"], 'unknown key "train.stpes" - did you mean train.steps?'),
        (["++train.stpes=1"], 'unknown key "train.stpes" - did you mean train.steps?'),
        (["steps=1"], 'unknown key "steps" - did you mean train.steps?'),
        (["lr=1e-3"], 'unknown key "lr" - did you mean optimizer.lr?'),
        (
            ["batch_size=2"],
            'unknown key "batch_size" - did you mean train.micro_batch_size or train.global_batch_size?',
        ),
        (["qqqq=1"], 'unknown key "qqqq" - --cfg prints every key'),
        (
            ["strategy.bucket_cap_mb=1"],
            "strategy.bucket_cap_mb belongs to strategy=ddp or strategy=zero1: this is strategy=fsdp",
        ),
        (
            ["model.kv_heads=2"],
            "model.kv_heads belongs to model.architecture=llama or model.architecture=moe: "
            "this is model.architecture=gpt",
        ),
        (["train.steps"], '"train.steps" is not an override: it has no = - write KEY=VALUE'),
        (["=3"], '"=3" is not an override: it has no key - write KEY=VALUE'),
        (
            ["data.path=a=b"],
            "cannot read data.path=a=b: mismatched input '=' expecting <EOF> - "
            "write KEY=VALUE; quote a value with special characters: 'data.path=\"a=b\"'",
        ),
        (["data=text"], "data.path is required: data=text data.path=FILE"),
        (["data=tokens"], "data.path is required: data=tokens data.path=FILE"),
        (["model=custom"], "model._target_ is required: model=custom model._target_=my_package.MyModel"),
        (["resume=None"], "resume=None is text - use null: resume=null"),
        (["train.clip_norm=None"], "train.clip_norm=None is text - use null: train.clip_norm=null"),
        (["train.steps=ten"], "train.steps=ten is text, not a whole number"),
        (["runs_folder="], "runs_folder is empty - write runs_folder=PATH"),
        (
            ["hydra/launcher=joblib"],
            f"hydra/launcher has no effect: dtk runs sweeps itself, one run after another - {LISTS}",
        ),
        (
            ["hydra.sweeper.params=1"],
            f"hydra.sweeper.params has no effect: dtk runs sweeps itself, one run after another - {LISTS}",
        ),
        (
            ["hydra.run.dir=x"],
            f"hydra.run.dir has no effect: dtk uses Hydra only to compose - {FOLDERS}",
        ),
        (
            ["strategy=ddp,fsdp"],
            "strategy=ddp,fsdp asks for several runs - add -m, or quote a value with a comma: 'strategy=\"a,b\"'",
        ),
        (
            ["strategy.name=ddp"],
            f"strategy.name is fixed by the choice of strategy - use strategy=OPTION: {STRATEGIES}",
        ),
        (["~train"], "train is required - the configuration needs the section train"),
        (
            ["~strategy"],
            f"strategy cannot be removed - choose one of its options: {STRATEGIES}",
        ),
        (["train.steps=${nope}"], "the configuration cannot be composed: Interpolation key 'nope' not found"),
    ],
)
def test_each_mistake_is_one_line_with_its_way_out(overrides: list[str], expected: str) -> None:
    assert message(*overrides) == expected


def test_the_last_choice_of_a_group_counts() -> None:
    assert isinstance(compose(["strategy=fsdp", "+strategy=ddp"]).config.strategy, DDPConfig)


def test_off_and_none_are_names_not_booleans() -> None:
    composed = compose(["record=off", "checkpoint=off", "tracker=none"])
    assert (composed.plain["record"]["level"], composed.plain["tracker"]["name"]) == ("off", "none")
    assert compose(["record.level=off"]).config.record.level == "off"


def test_paths_are_absolute_against_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["data=text", "data.path=in/x.txt", "data.tokenizer=t.json", "resume=runs/a"]).config
    assert config.data.path == str(tmp_path / "in/x.txt")
    assert config.data.tokenizer == str(tmp_path / "t.json")
    assert config.resume == str(tmp_path / "runs/a")
    assert config.runs_folder == str(tmp_path / "runs")
    assert compose(["data.tokenizer=gpt2"]).config.data.tokenizer == "gpt2"


def test_hub_names_stay_and_local_datasets_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert compose(["data=hf", "data.path=owner/set"]).config.data.path == "owner/set"
    (tmp_path / "mine").mkdir()
    assert compose(["data=hf", "data.path=mine"]).config.data.path == str(tmp_path / "mine")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "my conf, really"
    for group in ("strategy", "model", "experiment"):
        (folder / group).mkdir(parents=True)
    return folder


def test_own_folder_adds_and_hides_options(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "strategy" / "fsdp.yaml").write_text("name: fsdp\nblocks_per_unit: 3\n")
    (own / "strategy" / "mine.yaml").write_text("name: ddp\nbucket_cap_mb: 1\n")
    monkeypatch.chdir(own.parent)
    relative = Path(own.name)
    assert compose([], relative).config.strategy == FSDPConfig(blocks_per_unit=3)
    assert compose(["strategy=mine"], relative).config.strategy == DDPConfig(bucket_cap_mb=1.0)
    assert compose(["strategy=zero1"], relative).config.strategy.name == "zero1"


def test_a_key_that_the_own_file_leaves_out_can_be_overridden(own: Path) -> None:
    (own / "strategy" / "mine.yaml").write_text("name: ddp\n")
    config = compose(["strategy=mine", "strategy.static_graph=true"], own).config
    assert config.strategy == DDPConfig(static_graph=True)


@pytest.mark.parametrize(
    ("file", "text", "overrides", "expected"),
    [
        (
            "model/bad.yaml",
            "name: bad\narchitecture: gpt\nwidht: 3\n",
            ["model=bad"],
            'unknown key "model.widht" - did you mean model.width?',
        ),
        (
            "experiment/bad.yaml",
            "# @package _global_\ntrain:\n  stpes: 10\n",
            ["experiment=bad"],
            'unknown key "train.stpes" - did you mean train.steps?',
        ),
        (
            "model/bad.yaml",
            "name: bad\narchitecture: gtp\n",
            ["model=bad"],
            "unknown model.architecture=gtp - did you mean gpt? options: gpt, llama, moe, encoder, custom",
        ),
        (
            "model/bad.yaml",
            "name: bad\n",
            ["model=bad"],
            "model.architecture is required - it is one of gpt, llama, moe, encoder, custom",
        ),
    ],
)
def test_mistakes_inside_yaml_files(own: Path, file: str, text: str, overrides: list[str], expected: str) -> None:
    (own / file).write_text(text)
    assert message(*overrides, config_dir=own) == expected


@pytest.mark.parametrize(("text", "line"), [("name: bad\nx: [1\ny: 2\n", 3), ("a: 1\na: 2\n", 2), ("\t- x\n", 1)])
def test_broken_yaml_is_named_with_file_and_line(own: Path, text: str, line: int) -> None:
    path = own / "model" / "bad.yaml"
    path.write_text(text)
    assert message("model=bad", config_dir=own).startswith(f"{path}: line {line}: not valid YAML (")


def test_defaults_list_that_names_no_file(own: Path) -> None:
    (own / "experiment" / "bad.yaml").write_text("# @package _global_\ndefaults:\n  - override /model: gtp2\n")
    text = message("experiment=bad", config_dir=own)
    assert text.startswith("the configuration cannot be composed: ") and "'model/gtp2'" in text and "gpt2" in text
    assert "search path" not in text


def test_missing_own_folder(tmp_path: Path) -> None:
    assert message(config_dir=tmp_path / "no") == f"the configuration folder {tmp_path / 'no'}: there is no such folder"


def test_sweeps_expand_as_nested_loops() -> None:
    assert expand(["strategy=ddp,fsdp", "train.steps=5", "seed=range(1,3)"]) == [
        ["strategy=ddp", "train.steps=5", "seed=1"],
        ["strategy=ddp", "train.steps=5", "seed=2"],
        ["strategy=fsdp", "train.steps=5", "seed=1"],
        ["strategy=fsdp", "train.steps=5", "seed=2"],
    ]
    assert expand(["strategy=glob(zero*,exclude=[zero3,zeropp])"]) == [["strategy=zero1"], ["strategy=zero2"]]
    assert expand(["optimizer.lr=choice(1e-3,1e-4)"]) == [["optimizer.lr=0.001"], ["optimizer.lr=0.0001"]]
    assert expand(["data.path='a,b'"]) == [["data.path='a,b'"]]


def test_glob_sees_the_users_own_options(own: Path) -> None:
    (own / "strategy" / "zero9.yaml").write_text("name: zero1\n")
    assert ["strategy=zero9"] in expand(["strategy=glob(zero*)"], own)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=glob(*)", "seed=glob(*): seed has no options: glob() matches the files of a group - list the values"),
        ("precision=glob(q*)", "precision=glob(q*) matches nothing - options: bf16, fp16, fp32, tf32"),
        (
            "seed=interval(0,1)",
            "seed=interval(0,1) has infinitely many values - list them, or use range: seed=range(1,5)",
        ),
        ("seed=range(0,1000000000)", "the sweep has more than 10000 points - use shorter lists"),
    ],
)
def test_sweeps_that_cannot_run(override: str, expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        expand([override])
    assert str(caught.value) == expected


def test_every_point_of_a_sweep_is_what_it_says() -> None:
    points: list[Any] = [compose(o).config for o in expand(["strategy=ddp,zero1", "train.steps=3,4"])]
    assert [(p.strategy.name, p.train.steps) for p in points] == [("ddp", 3), ("ddp", 4), ("zero1", 3), ("zero1", 4)]


def test_composing_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.core.global_hydra import GlobalHydra

    before = (Path.cwd(), dict(os.environ))
    compose(["strategy=ddp"])
    assert (Path.cwd(), dict(os.environ)) == before
    assert not GlobalHydra.instance().is_initialized()


def test_sizes_of_a_transformers_model_are_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 300, "n_positions": 40}')
    config = compose(["model=hf", f"model.path={tmp_path}", "model.vocab_size=7"]).config
    assert (config.model.vocab_size, config.model.context_length) == (7, 40)
    assert config.model.constructor == {"path": str(tmp_path)}
    assert compose(["model=hf", f"model.path={tmp_path}"]).config.model.vocab_size == 300
    for text, expected in (
        ("{}", "does not say model.context_length - set it: model.context_length=N"),
        ("[1]", "it is not a config.json of transformers"),
        ("{", "it is not a config.json of transformers"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert expected in message("model=hf", f"model.path={tmp_path}", "model.vocab_size=7")
    assert "No such file or directory - model.path=FOLDER" in message("model=hf", f"model.path={tmp_path / 'absent'}")


def test_a_main_file_and_lists_of_ones_own_as_hydra_has_them(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "night.yaml").write_text("defaults: [config, override strategy: ddp, _self_]\ntrain: {steps: 7}\n")
    grid = tmp_path / "experiment" / "grid.yaml"
    params = "# @package _global_\nhydra: {sweeper: {params: {strategy: 'ddp,fsdp', train.steps: '3,4'}}}\n"
    grid.write_text(params)
    night = tmp_path / "night.yaml"
    config = compose([], night, traced=True).config
    assert (config.train.steps, config.strategy.name) == (7, "ddp")
    assert compose(["strategy=fsdp"], night).config.strategy.name == "fsdp"
    assert lists_of_files(["experiment=grid", "strategy=ddp,zero1"], tmp_path) == ["train.steps=3,4"]
    assert lists_of_files(["seed=1,2"], night) == []
    rows = [line.split() for line in files_merged(["model=gpt2"], night).splitlines()]
    assert ["strategy/ddp", "strategy", "night"] in rows and rows[1] == ["-", str(tmp_path)]
    assert message(config_dir=tmp_path / "nigt.yaml") == (
        f"--config-name nigt: there is no {tmp_path / 'nigt.yaml'} - name its folder by --config-dir"
    )
    grid.write_text(params + "train: {steps: 3}\n")
    compose(["experiment=grid"], tmp_path, traced=True)
    grid.write_text("# @package _global_\nhydra:\n  run: {dir: out}\n")
    with pytest.raises(
        DtkError, match=r"^hydra.run.dir in .*grid.yaml:3 has no effect: dtk uses Hydra only to compose"
    ):
        compose(["experiment=grid"], tmp_path, traced=True)


def test_a_model_folder_that_is_missing_is_asked_for_as_a_folder() -> None:
    with pytest.raises(DtkError, match=r"model\.path is required: model=hf model\.path=FOLDER"):
        compose(["model=hf"])
