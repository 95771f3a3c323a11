"""Hydra's errors as one line, and the files that it merges in their order."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from dtk.config import hydra_compose
from dtk.config.compose import compose
from dtk.config.folders import conf_folder
from dtk.config.hydra_compose import UserFolders, compose_plain, merged
from dtk.errors import DtkError

OWN = conf_folder()


def users(tmp_path: Path, name: str, text: str) -> list[Path]:
    """Return the search path with a model of the user's."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / f"{name}.yaml").write_bytes(text.encode("latin-1"))
    return [tmp_path, OWN]


def test_interpolations_are_resolved_and_values_are_plain() -> None:
    plain = compose_plain(["strategy=ddp", "++train.steps=4", "++train.log_every=${train.steps}"], [OWN], "config")
    assert plain["strategy"]["name"] == "ddp" and plain["train"]["log_every"] == 4
    assert type(plain["strategy"]) is dict


def test_a_file_of_the_users_hides_dtks(tmp_path: Path) -> None:
    folders = users(tmp_path, "gpt2", "# @package model\nname: mine\n")
    assert compose_plain(["model=gpt2"], folders, "config")["model"] == {"name": "mine"}
    assert UserFolders.folders == (), "no later composing sees the user's folder"
    assert compose_plain(["model=gpt2"], [OWN], "config")["model"]["name"] == "gpt2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [1\n", "gpt2.yaml: line 2: not valid YAML"),
        ("name: 'caf\xe9'\n", "gpt2.yaml: not valid YAML (unacceptable character"),
        ("name: ${nowhere}\n", "the configuration cannot be composed: Interpolation key 'nowhere' not found"),
        ("defaults: [nothing]\n", "the configuration cannot be composed: "),
        (f"name: {'[' * 5000}{']' * 5000}\n", "gpt2.yaml: refused: nested over 64 levels"),
    ],
)
def test_a_file_that_cannot_be_composed_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DtkError) as caught:
        compose_plain(["model=gpt2"], users(tmp_path, "gpt2", text), "config")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "Config search path" not in str(caught.value) and "full_key" not in str(caught.value)


def test_a_file_that_stands_for_very_much_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    with pytest.raises(DtkError, match=r"gpt2\.yaml: refused: it describes too much"):
        compose_plain(["model=gpt2"], users(tmp_path, "gpt2", f"a0: &a0 [x, x]\n{laughs}"), "config")


def test_references_to_references_end_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_compose, "_LIMITS", Limits(seconds=1))
    doubled = "".join(f"v{n}: ${{model.v{n - 1}}}${{model.v{n - 1}}}\n" for n in range(1, 40))
    with pytest.raises(DtkError, match="expand to too much"):
        compose_plain(["model=gpt2"], users(tmp_path, "gpt2", f"v0: xx\n{doubled}"), "config")
    assert compose_plain([], [OWN], "config")["model"]["name"], "the next one is composed"


def test_files_that_choose_each_other_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = users(tmp_path, "mine", "defaults: [other]\n")
    (tmp_path / "model" / "other.yaml").write_text("defaults: [mine]\n")
    with pytest.raises(DtkError, match=r"its defaults lists .* are circular"):
        compose_plain(["model=mine"], folders, "config")
    monkeypatch.setattr(hydra_compose, "_LIMITS", Limits(seconds=1))
    for number in range(30):
        text = f"defaults: [two{number + 1}@a, two{number + 1}@b]\n"
        (tmp_path / "model" / f"two{number}.yaml").write_text(text)
    (tmp_path / "model" / "two30.yaml").write_text("a: 1\n")
    with pytest.raises(DtkError, match="expand to too much"):
        compose_plain(["model=two0"], folders, "config")


def test_a_header_that_hydra_cannot_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="Too many components"):
        compose_plain(["model=gpt2"], users(tmp_path, "gpt2", "# @package model twice\nname: mine\n"), "config")


def test_the_files_in_the_order_of_merging_with_what_chose_them() -> None:
    sources = merged(["strategy=ddp", "++train.steps=4"], [OWN], "config")
    chosen = {file.group: file for file in sources.files if file.group}
    assert chosen["strategy"].config == "strategy/ddp" and chosen["strategy"].package == "strategy"
    assert chosen["model"].chosen_in == "config"
    assert sources.typed_choices == {"strategy": "strategy=ddp"}
    assert [override.key_or_group for override in sources.values] == ["train.steps"]
    assert not any(file.config.startswith("hydra") for file in sources.files)


def test_threads_compose_one_at_a_time() -> None:
    with ThreadPoolExecutor(4) as pool:
        composed = pool.map(lambda step: compose(["model=gpt2_tiny", f"train.steps={step}"]), range(1, 9))
        assert [item.config.train.steps for item in composed] == [*range(1, 9)]
