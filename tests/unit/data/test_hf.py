import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dtk.config.schema import HFData
from dtk.data.build import build_dataset
from dtk.errors import DtkError
from tests.patience import stretched


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    path = tmp_path / "data" / "train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"body": f"document {i}", "n": i}) + "\n" for i in range(50)))
    return path


def expected() -> bytes:
    return b"".join(b"document %d\0" % i for i in range(50))


def config(path: Path, **changes: str) -> HFData:
    return HFData(**{"path": str(path), "text_field": "body", "sequence_length": 10, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["file", "folder", "saved"])
def test_local_data(kind: str, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf (package datasets) is not installed")
    cache = str(tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(cache))
    path = {"file": lines, "folder": lines.parent, "saved": tmp_path / "saved"}[kind]
    if kind == "saved":
        datasets.load_dataset("json", data_files=str(lines), split="train").save_to_disk(str(path))
    dataset = build_dataset(config(path))
    tokens = dataset.train(np.arange(dataset.train_size)).inputs.flatten().tolist()
    assert bytes(tokens) == expected()[: len(tokens)]
    with pytest.raises(DtkError, match=r"no column 'text'.*it has body, n"):
        build_dataset(config(path, text_field="text"))
    with pytest.raises(DtkError, match=r"column 'n' .* is not text"):
        build_dataset(config(path, text_field="n"))
    if kind != "file":
        # What is cached needs neither the package nor a second load.
        monkeypatch.setitem(sys.modules, "datasets", None)
        assert build_dataset(config(path)).describe() == dataset.describe()


def test_part_of_a_split(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf (package datasets) is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    dataset = build_dataset(config(lines, split="train[:20]"))
    assert dataset.describe()["bytes"] == len(b"".join(b"document %d" % i for i in range(20)))
    with pytest.raises(DtkError, match="cannot load split") as caught:
        build_dataset(config(lines, split="train[:many]"))
    assert "\n" not in str(caught.value)


def test_without_the_package(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DtkError, match=r"package datasets - pip install 'dtk-train\[hf\]'"):
        build_dataset(config(lines))


def test_missing_path(tmp_path: Path) -> None:
    for name in (str(tmp_path / "absent"), "absent.jsonl", "./absent", "a/b/c"):
        with pytest.raises(DtkError, match="no such dataset"):
            build_dataset(HFData(path=name))


@pytest.mark.timeout(60)
def test_a_hub_name_without_network_fails(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra hf (package datasets) is not installed")
    code = (
        "from dtk.config.schema import HFData; from dtk.data.build import build_dataset\n"
        "from dtk.errors import DtkError\n"
        "try: build_dataset(HFData(path='somebody/something'))\n"
        "except DtkError as error: print(error)"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=stretched(50)
    )
    assert "cannot load split 'train' of somebody/something" in run.stdout, run.stderr
