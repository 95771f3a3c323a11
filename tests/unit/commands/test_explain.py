"""`dtk explain`: causes, keys, strategies and options by name."""

import pytest

from diagnostics.causes import registry
from dtk.commands.main import main
from dtk.config.keys import keys


def said(capsys: pytest.CaptureFixture[str], *names: str, code: int = 0) -> str:
    assert main(["explain", *names]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_a_cause_tells_what_decides_and_what_fixes_it(capsys: pytest.CaptureFixture[str]) -> None:
    cause = next(cause for cause in registry.built_in() if cause.id == "hang.rank_killed")
    text = " ".join(said(capsys, "rank_killed").split())
    assert text.startswith(f"hang.rank_killed: {cause.title} outcome CRASHED decided from {cause.decided_from}")
    assert cause.remedy in text
    assert f"ruled out by {cause.ruled_out_by}" in text and f"source {cause.source}" in text


def test_a_job_that_was_stopped_did_not_crash(capsys: pytest.CaptureFixture[str]) -> None:
    assert " outcome STOPPED " in " ".join(said(capsys, "env.job_stopped").split())


def test_every_cause_option_and_section_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    names = [cause.id for cause in registry.built_in()]
    text = said(capsys, *names)
    assert [text.count(f"\n  {label} ") for label in ("decided from", "ruled out by", "source")] == [len(names)] * 3
    assert "PyTorch FSDP2" in said(capsys, "strategy=fsdp")
    assert said(capsys, "fsdp") == said(capsys, "strategy=fsdp")
    both = said(capsys, "unused_parameters")
    assert "fault=unused_parameters" in both and "hang.unused_parameters" in both


def test_a_family_and_a_group_list_what_they_have(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "hang")
    ids = [cause.id for cause in registry.built_in() if cause.id.startswith("hang.")]
    assert text.startswith(f"hang: {len(ids)} causes of hangs and crashes\n") and all(f"{id_}: " in text for id_ in ids)
    assert "  option  schedule=cosine: " in said(capsys, "schedule")


def test_a_key_that_several_kinds_share_comes_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "bucket_cap_mb")
    assert text.count("strategy.bucket_cap_mb") == 1 and "strategy=ddp, strategy=zero1" in text
    text = said(capsys, "train.micro_batch_size")
    assert "type     int" in text and "default  0" in text and "only with" not in text


@pytest.mark.parametrize(("name", "near"), [("hang.rank_ooom", "hang.rank_oom"), ("fsdpp", "fsdp"), ("xyzzy", "docs/")])
def test_an_unknown_name_is_one_line_with_what_is_near(
    name: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, name, code=2)
    assert (
        text.count("\n") == 1 and f'there is no cause, key, strategy or option named "{name}"' in text and near in text
    )


def test_a_section_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "train").split())
    assert "keys of this section" in text and "train.clip_norm: Largest global gradient norm" in text
    text = " ".join(said(capsys, "optimizer").split())
    assert "of the configuration group" in text and "optimizer.lr: Learning rate" in text


def test_no_cause_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "hang.conditional_collective").count("hang.conditional_collective") == 1


def test_keys_have_their_text_of_the_class_that_defines_them() -> None:
    result = {(key.name, key.kind): key for key in keys()}
    assert result["seed", ""].default == "1234"
    assert result["train.clip_norm", ""].type == "float or null"
    assert result["train.compile", ""].default == "false"
    assert result["checkpoint.every", ""].about == "Steps between checkpoints; 0 = none during training."
    assert len({name for name, _ in result}) > 150
