"""GPT-2 weights from and to Hugging Face's layout, with and without transformers."""

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dtk.config.schema import GPTConfig, LlamaConfig, MoEConfig
from dtk.errors import DtkError
from dtk.models.gpt import GPT
from dtk.models.hf import check_gpt2, export_weights, hf_name, load_gpt2

CONFIG = GPTConfig(name="tiny", vocab_size=61, context_length=24, layers=3, heads=4, width=32)
TOKENS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(3))


def export(model: nn.Module, folder: Path, config: Any = CONFIG) -> None:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    export_weights(config, shapes, ((n, p.detach()) for n, p in model.named_parameters()), folder)


def loaded(folder: Path, config: GPTConfig = CONFIG) -> GPT:
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu").eval()
    load_gpt2(model, folder)
    return model


@pytest.fixture
def folder(tmp_path: Path, random_model: Any) -> Path:
    """A Hugging Face folder with random weights of CONFIG."""
    export(random_model(CONFIG), tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def settings(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_logits_of_a_folder_written_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=61,
            n_positions=24,
            n_embd=32,
            n_layer=3,
            n_head=4,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # biases and norms start as constants: random values show a swapped pair
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    theirs.save_pretrained(tmp_path)
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(loaded(tmp_path)(TOKENS), expected, atol=1e-4, rtol=0)


def test_transformers_reads_an_export_with_the_same_logits(folder: Path, random_model: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    theirs, report = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    expected = random_model(CONFIG)(TOKENS)
    assert expected.std() > 0.5
    torch.testing.assert_close(theirs.eval()(TOKENS).logits, expected, atol=1e-4, rtol=0)


def test_export_and_load_return_the_same_weights(folder: Path, random_model: Any) -> None:
    original, copy = random_model(CONFIG).state_dict(), loaded(folder).state_dict()
    assert original.keys() == copy.keys()
    assert all(torch.equal(original[name], copy[name]) for name in original)


def test_export_has_hugging_faces_names_and_conv1d_layout(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == 2 + 3 * 12 + 2
    assert tensors["transformer.h.2.mlp.c_fc.weight"].shape == (32, 128)
    assert tensors["transformer.h.0.attn.c_attn.weight"].shape == (32, 96)
    assert tensors["transformer.wte.weight"].shape == (61, 32)
    assert "lm_head.weight" not in tensors


def test_names_without_prefix_and_extra_buffers_load_too(folder: Path) -> None:
    expected = loaded(folder)(TOKENS)

    def as_on_the_hub(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        return {**bare, "h.0.attn.bias": torch.ones(1, 1, 24, 24)}

    rewrite(folder, as_on_the_hub)
    assert torch.equal(loaded(folder)(TOKENS), expected)


def test_half_precision_files_fill_float32_parameters(folder: Path) -> None:
    expected = loaded(folder).state_dict()
    rewrite(folder, lambda tensors: {name: value.half() for name, value in tensors.items()})
    for name, value in loaded(folder).state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[name].half().float())


def test_every_parameter_has_a_name_of_its_own() -> None:
    names = [hf_name(name) for name, _ in GPT(CONFIG).named_parameters()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_head": 8}, "set model.heads=8"),
        ({"n_layer": 2}, "set model.layers=2"),
        ({"vocab_size": 50257}, "set model.vocab_size=50257"),
        ({"model_type": "llama"}, "model_type=llama"),
        ({"activation_function": "relu"}, "activation_function=relu"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"n_inner": 64}, "n_inner=64"),
    ],
)
def test_another_model_in_the_folder_is_one_line(folder: Path, change: dict[str, Any], message: str) -> None:
    settings(folder, **change)
    with pytest.raises(DtkError) as error:
        check_gpt2(CONFIG, folder)
    assert message in str(error.value)


def test_missing_and_misshapen_tensors_are_one_line(folder: Path) -> None:
    check_gpt2(CONFIG, folder)
    rewrite(folder, lambda t: {**t, "transformer.wpe.weight": torch.zeros(23, 32)})
    with pytest.raises(DtkError, match=r"wpe\.weight is \[23, 32\] there, \[24, 32\] here"):
        check_gpt2(CONFIG, folder)
    rewrite(folder, lambda t: {n: v for n, v in t.items() if "h.1" not in n})
    with pytest.raises(DtkError, match=r"no tensor transformer\.h\.1\.ln_1\.weight and 11 more"):
        loaded(folder)


def test_missing_and_broken_files_are_one_line(folder: Path) -> None:
    with pytest.raises(DtkError, match=r"no readable config\.json"):
        check_gpt2(CONFIG, folder / "absent")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DtkError, match="not a safetensors file"):
        check_gpt2(CONFIG, folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(DtkError, match=r"no model\.safetensors"):
        check_gpt2(CONFIG, folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(DtkError, match="not JSON"):
        check_gpt2(CONFIG, folder)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_an_exported_llama_with_the_same_logits(
    tied: bool, tmp_path: Path, random_model: Any
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    sizes = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "ffn_width": 40, "context_length": 24}
    config = LlamaConfig(name="l", vocab_size=61, rope_theta=300.0, norm_eps=1e-3, tie_weights=tied, **sizes)
    model = random_model(config)
    export(model, tmp_path, config)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    expected = model(TOKENS)
    assert expected.std() > 0.1
    torch.testing.assert_close(theirs.float().eval()(TOKENS).logits, expected, atol=1e-4, rtol=0)


def test_other_architectures_keep_their_names(tmp_path: Path, random_model: Any) -> None:
    sizes = {"vocab_size": 40, "layers": 1, "heads": 2, "kv_heads": 1, "width": 16, "ffn_width": 24}
    config = MoEConfig(name="m", experts=2, experts_per_token=1, expert_width=8, **sizes)
    model = random_model(config)
    export(model, tmp_path, config)
    tensors = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(tensors.pop(name), p) for name, p in model.named_parameters())
    assert tensors == {}
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["architecture"], written["kv_heads"]) == ("moe", 1)


def test_export_holds_one_parameter_at_a_time(tmp_path: Path) -> None:
    alive: list[int] = []

    class Counted(Tensor):
        pass

    def gather() -> Iterator[tuple[str, Tensor]]:
        kept: list[weakref.ref[Tensor]] = []
        for name, parameter in GPT(CONFIG).named_parameters():
            gc.collect()
            alive.append(sum(r() is not None for r in kept))
            value = parameter.detach().clone().as_subclass(Counted)
            kept.append(weakref.ref(value))
            yield name, value
            del value

    shapes = {name: p.shape for name, p in GPT(CONFIG).named_parameters()}
    gc.freeze()  # What is there already need not be looked at again for every parameter.
    export_weights(CONFIG, shapes, gather(), tmp_path)
    gc.unfreeze()
    assert max(alive) <= 1
