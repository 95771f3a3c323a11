"""A model of transformers out of a folder: its weights and names, padding, and folders that cannot be used."""

from pathlib import Path

import pytest
import torch

from dtk.errors import DtkError
from dtk.models.pretrained import Pretrained

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small random models, as save_pretrained writes them."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES))
    llama.save_pretrained(root / "llama")
    transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).save_pretrained(root / "bert")
    return root


def test_the_weights_are_those_of_the_folder_under_their_names(folders: Path) -> None:
    model = Pretrained(str(folders / "llama"))
    stored = transformers.LlamaForCausalLM.from_pretrained(folders / "llama").state_dict()
    assert model.training and not model.config.use_cache
    assert model.state_dict().keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    random = Pretrained(str(folders / "llama"), weights=False).state_dict()
    assert not torch.equal(random["lm_head.weight"], stored["lm_head.weight"])


def test_padding_is_left_out_of_a_classification(folders: Path) -> None:
    model = Pretrained(str(folders / "bert"), head="sequence_classification").eval()
    text = torch.tensor([[5, 6, 7]])
    padded = torch.cat((text, torch.zeros(1, 4, dtype=torch.long)), 1)
    torch.testing.assert_close(model(padded).logits, model(text).logits)


def test_folders_that_cannot_be_used_are_one_line(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(DtkError, match=r"model\.path=.*absent cannot be used"):
        Pretrained(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(DtkError, match="cannot be used"):
        Pretrained(str(tmp_path))
    assert not (tmp_path / "ran").exists()
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    with pytest.raises(DtkError, match=r"set model\.arguments\.head=causal_lm\|masked_lm"):
        Pretrained(str(tmp_path))
    with pytest.raises(DtkError, match="cannot be used"):  # No weights.
        Pretrained(str(tmp_path), head="masked_lm")


FAMILIES = ("bert", "roberta", "electra", "xlm", "bert-generation", "bart", "llama", "qwen3", "gpt2", "gpt_neox", "opt")
NAMES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "bos_token_id": 1,
    "num_key_value_heads": 4,
    "head_dim": 8,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_causal_model_does_not_see_the_token_that_it_predicts(family: str, tmp_path: Path) -> None:
    about = transformers.AutoConfig.for_model(family, **SIZES, **NAMES, pad_token_id=0, eos_token_id=2)
    about.save_pretrained(tmp_path)
    settings = {}
    if family in ("bert", "roberta", "electra", "xlm", "bert-generation"):
        with pytest.raises(DtkError, match="predicts the next token while it attends to it") as refused:
            Pretrained(str(tmp_path), weights=False, head="causal_lm")
        with torch.device("meta"), pytest.raises(DtkError, match="its attention is not causal"):
            Pretrained(str(tmp_path), weights=False, head="causal_lm")
        switch = str(refused.value).partition("settings.")[2].partition("=")[0]
        settings = {switch: True}
    torch.manual_seed(0)
    model = Pretrained(str(tmp_path), weights=False, head="causal_lm", settings=settings).eval()
    text = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[5, 6, 7, 90]])
    torch.testing.assert_close(model(text).logits[:, :3], model(other).logits[:, :3])


def test_on_the_meta_device_no_weights_are_read(folders: Path) -> None:
    with torch.device("meta"):
        model = Pretrained(str(folders / "llama"))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_settings_of_the_folder_can_be_replaced(folders: Path) -> None:
    model = Pretrained(str(folders / "bert"), head="sequence_classification", settings={"num_labels": 5})
    assert model.config.num_labels == 5 and model(torch.tensor([[5, 6]])).logits.shape == (1, 5)
