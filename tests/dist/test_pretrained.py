"""transformers models from a local folder: every strategy trains the same, from the weights that lie there."""

from dataclasses import replace

import pytest
import torch

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero2 import Zero2Config
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
MORE = {"max_position_embeddings": 64}
STRATEGIES = {
    "single": SingleConfig(), "ddp": DDPConfig(), "fsdp": FSDPConfig(), "zero1": Zero1Config(), "zero2": Zero2Config()
}  # fmt: skip
TRAIN = replace(config().train, steps=3, micro_batch_size=4, evaluate_every=0, evaluate_samples=8)
LABELLED = schema.ClassificationData(sequence_length=32, samples_per_class=30, validation_fraction=0.2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Small random models, as save_pretrained writes them."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    result = {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES, **MORE)),
        "qwen": transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(num_key_value_heads=2, tie_word_embeddings=True, **SIZES, **MORE)
        ),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **MORE)),
    }
    for name, model in result.items():
        model.save_pretrained(root / name)
    return root


def section(folder, **arguments):
    return schema.CustomModelConfig(
        name="hf", _target_="dtk.models.pretrained.Pretrained", path=str(folder), arguments=arguments, vocab_size=257
    )


@pytest.fixture(scope="module")
def losses(folders, tmp_path_factory):
    head = {"head": "sequence_classification", "settings": {"num_labels": 8}}
    models = {
        "llama": {
            "model": section(folders / "llama"),
            "data": schema.StdlibData(sequence_length=32, max_bytes=400_000),
        },
        "qwen": {"model": section(folders / "qwen"), "data": schema.StdlibData(sequence_length=32, max_bytes=400_000)},
        "bert": {"model": section(folders / "bert", **head), "data": LABELLED},
    }
    few = {"llama": STRATEGIES, "qwen": ("single", "fsdp"), "bert": ("single", "ddp", "fsdp")}
    common = {"train": TRAIN, "schedule": schema.ConstantSchedule(), "optimizer": schema.AdamWConfig(lr=3e-3)}
    cases = [
        (f"{model} {name}", {**common, **changes, "strategy": STRATEGIES[name]}, None)
        for model, changes in models.items()
        for name in few[model]
    ]
    alone = [case for case in cases if case[0].endswith("single")]
    spread = [case for case in cases if not case[0].endswith("single")]
    train = "tests.dist.training_ranks:save_and_load"
    folder = str(tmp_path_factory.mktemp("trained"))
    return run_ranks(train, 1, alone, folder)[0] | run_ranks(train, 2, spread, folder)[0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "case", ["llama ddp", "llama fsdp", "llama zero1", "llama zero2", "qwen fsdp", "bert fsdp", "bert ddp"]
)
def test_every_strategy_trains_as_one_process(losses, case):
    """Without dropout; the masks of BERT's differ between ranks and strategies, so only its first loss is near."""
    alone = losses[f"{case.split()[0]} single"]
    assert len(alone) == 3
    if "bert" in case:
        assert losses[case][0] == pytest.approx(alone[0], abs=0.3)
    else:
        assert losses[case] == pytest.approx(alone, abs=1e-4)
        assert losses[f"{case}: validation"] == pytest.approx(losses[f"{case.split()[0]} single: validation"], abs=1e-4)
