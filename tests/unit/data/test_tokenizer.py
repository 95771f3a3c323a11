import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dtk.data.tokenizer import build_tokenizer, token_dtype
from dtk.errors import DtkError
from tests.work import calls_in

TEXT = "def f(x):\n    return x  # \u00e4\u20ac\U0001f600\n"


def test_byte_round_trip() -> None:
    tokenizer = build_tokenizer("byte")
    every = bytes(range(256))
    assert tokenizer.encode(every).tolist() == list(range(256)) and tokenizer.vocab_size == 256
    assert tokenizer.encode(TEXT.encode()).tobytes().decode() == TEXT


def test_byte_takes_no_work_for_each_byte() -> None:
    tokenizer, text = build_tokenizer("byte"), bytes(11_000_000)
    ids, calls = calls_in(lambda: tokenizer.encode(text))
    assert len(ids) == len(text) and calls < 50


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_smallest_type(vocab_size: int, name: str) -> None:
    assert token_dtype(vocab_size) == np.dtype(name)


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE())
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    encoder.train_from_iterator([TEXT] * 5, trainer)
    encoder.enable_truncation(2)  # a setting for short inputs, which must not cut a corpus
    path = tmp_path / "tokenizer.json"
    encoder.save(str(path))
    return path


def test_tokenizer_json_round_trip(tokenizer_file: Path) -> None:
    import tokenizers

    tokenizer = build_tokenizer(str(tokenizer_file))
    ids = tokenizer.encode(TEXT.encode())
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert reference.decode(ids.tolist()) == TEXT
    assert 2 < len(ids) < len(TEXT.encode())
    assert tokenizer.vocab_size == reference.get_vocab_size() and int(ids.max()) < tokenizer.vocab_size
    assert tokenizer.separator == reference.token_to_id("<|endoftext|>")
    changed = tokenizer_file.with_name("other.json")
    changed.write_text(tokenizer_file.read_text() + "\n")
    assert build_tokenizer(str(changed)).identity != tokenizer.identity


def test_tokenizer_json_that_is_none(tmp_path: Path, tokenizer_file: Path) -> None:
    for content in ("", "{}", json.dumps({"model": {"type": "BPE"}})):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(DtkError, match=r"not a usable tokenizer\.json"):
            build_tokenizer(str(tmp_path / "bad.json"))
    with pytest.raises(DtkError, match='unknown tokenizer "bytes": no such file - did you mean byte'):
        build_tokenizer(str(Path.cwd() / "bytes"))  # As composing makes it.


@pytest.mark.parametrize(("name", "package"), [("gpt2", "tiktoken"), ("file", "tokenizers")])
def test_package_not_installed(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "file").write_text("{}")
    chosen = name if name == "gpt2" else str(tmp_path / "file")
    with pytest.raises(DtkError, match=f"package {package}.*dtk-train"):
        build_tokenizer(chosen).encode(b"text")


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Accepts connections and never answers: the network that lets a download hang."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "reason"), [("refused", "refused"), ("silent", "no result within|timed out")])
def test_gpt2_without_cache_and_network_fails(
    kind: str, reason: str, silent_server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tiktoken", reason="the extra hf is not installed")
    proxy = f"http://127.0.0.1:{silent_server if kind == 'silent' else 1}"
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    tokenizer = build_tokenizer("gpt2")
    assert tokenizer.vocab_size == 50257
    with pytest.raises(DtkError, match=f"not cached and cannot be downloaded.*({reason})") as caught:
        tokenizer.encode(b"text")
    assert "\n" not in str(caught.value) and "TIKTOKEN_CACHE_DIR" in str(caught.value)
