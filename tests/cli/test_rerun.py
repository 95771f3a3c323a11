"""`dtk rerun` and `dtk show --why`: the stored configuration, what set each key, and whether the code is the same."""

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.contract.origins import LONGEST
from diagnostics.runs.records import read_origins
from dtk.commands.main import main
from dtk.config.compose import Composed, compose
from dtk.record.manifest import git_state, versions
from dtk.record.run_folder import describe

TYPED = ["experiment=smoke", "strategy=ddp", "train.steps=3", "nccl.variables.NCCL_PROTO=Simple"]


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the user's that ignores nothing, where one stands."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("x = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    monkeypatch.chdir(folder)
    return folder


@functools.cache
def default_configuration() -> Composed:
    return compose(TYPED, traced=True)


def make_run(project: Path, name: str = "one", typed: list[str] = TYPED, config_dir: Path | None = None) -> Path:
    """A run folder as the launch leaves it."""
    paths = RunPaths(project / "runs" / name)
    composed = default_configuration() if typed is TYPED else compose(typed, config_dir, traced=True)
    paths.root.mkdir(parents=True)
    manifest = {
        "schema_version": 1,
        "run_id": name,
        "cwd": str(project),
        "git": git_state(project, project / "runs"),
        "versions": versions(),
        "topology": {"world_size": 2},
        "data": {"sha256": "abc"},
    }
    plain = {**composed.plain, "train": {**composed.plain["train"], "micro_batch_size": 4}}
    describe(paths, manifest, plain, composed.overrides, composed.origins)
    write_json(paths.status, Status(state="finished", started="2026-01-01T00:00:00+00:00"))
    return paths.root


def answer_of(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_same_code_is_run_without_a_word(project: Path, capsys: Any) -> None:
    run = make_run(project)
    make_run(project, "another run is no change of the code")
    for words in (["one"], ["one", "--strict"], ["runs/one", "--strict"]):
        code, out, err = answer_of(capsys, "rerun", *words, "--cfg")
        assert (code, err) == (0, "")
        assert yaml.safe_load(out) == yaml.safe_load((run / "config.yaml").read_text())


def test_what_is_typed_comes_on_top(project: Path, capsys: Any) -> None:
    make_run(project)
    code, out, _ = answer_of(capsys, "rerun", "last", "--cfg", "train.steps=9", "strategy=zero1")
    table = yaml.safe_load(out)
    assert (code, table["train"]["steps"], table["strategy"]["name"]) == (0, 9, "zero1")
    assert table["model"]["name"] == "gpt2_tiny"
    code, _, err = answer_of(capsys, "rerun", "last", "--cfg", "train.stps=9")
    assert code == 2 and "did you mean train.steps?" in err and err.count("\n") == 1


def edited(project: Path) -> None:
    (project / "train.py").write_text("x = 2\n")


def committed(project: Path) -> None:
    edited(project)
    git(project, "commit", "-qam", "second")


def added(project: Path) -> None:
    (project / "new.py").write_text("y = 1\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edited, "uncommitted changes: none then, some now"),
        (added, "uncommitted changes: none then, some now"),
        (committed, "commit was "),
    ],
)
def test_other_code_is_a_warning_and_with_strict_the_end(project: Path, capsys: Any, change: Any, said: str) -> None:
    make_run(project)
    change(project)
    code, out, err = answer_of(capsys, "rerun", "one", "--cfg")
    assert code == 0 and yaml.safe_load(out)["train"]["steps"] == 3
    assert err.startswith(f"dtk: warning: the code differs from that of one: {said}") and err.count("\n") == 1
    code, out, err = answer_of(capsys, "rerun", "one", "--cfg", "--strict")
    assert (code, out) == (2, "")
    assert err.startswith(f"dtk: the code differs from that of one: {said}") and err.count("\n") == 1


def test_dirty_then_and_now_is_told_apart_by_content(project: Path, capsys: Any) -> None:
    edited(project)
    make_run(project)
    assert answer_of(capsys, "rerun", "one", "--cfg", "--strict")[0] == 0
    (project / "train.py").write_text("x = 3\n")
    assert "uncommitted changes: different ones" in answer_of(capsys, "rerun", "one", "--cfg", "--strict")[2]


def test_another_version_and_no_repository(project: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(project)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    write_json(run / "manifest.json", manifest)
    assert f"torch was 1.0, now {versions()['torch']} (--strict" in answer_of(capsys, "rerun", "one", "--cfg")[2]
    monkeypatch.chdir(project.parent)
    err = answer_of(capsys, "rerun", str(run), "--cfg")[2]
    assert f"it ran at commit {manifest['git']['commit'][:10]} in {project}, and this is not a git repository" in err
    write_json(run / "manifest.json", {**manifest, "git": None, "versions": versions()})
    err = answer_of(capsys, "rerun", str(run), "--cfg")[2]
    assert "the code cannot be compared with that of one: it was started outside any git repository" in err


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("status.json", "{", "runs/one is damaged: status.json: "),
        ("manifest.json", "{", "runs/one is damaged: manifest.json: "),
        ("manifest.json", '{"schema_version": 7}', "runs/one was written by a newer dtk: manifest.json has schema 7"),
        ("config.yaml", "a: [", "--rerun runs/one is not a run folder of dtk"),
        ("config.yaml", "a: 1", '--rerun runs/one is not a run folder of dtk: unknown key "a"'),
    ],
)
def test_a_damaged_run_is_one_line(project: Path, capsys: Any, file: str, content: str, said: str) -> None:
    run = make_run(project)
    (run / file).write_text(content)
    before = {path: path.read_bytes() for path in run.iterdir()}
    code, out, err = answer_of(capsys, "rerun", "one", "train.steps=1")
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"dtk: {said}")
    assert before == {path: path.read_bytes() for path in run.iterdir()}


def test_strict_needs_a_run(capsys: Any) -> None:
    code, _, err = answer_of(capsys, "run", "--strict", "--cfg")
    assert code == 2 and err == "dtk: --strict compares the code with that of a run - add --rerun RUN\n"


def test_why_names_the_override_and_what_it_overrules(project: Path, capsys: Any) -> None:
    make_run(project)
    code, out, err = answer_of(capsys, "show", "one", "--why", "train.steps")
    assert (code, err) == (0, "")
    first, second, third, fourth = out.splitlines()
    assert first == "train.steps = 3"
    assert second == "set by  train.steps=3 on the command line"
    assert third.startswith("over    conf/experiment/smoke.yaml:8 (chosen by experiment=smoke on the command line)")
    assert fourth.startswith("over    conf/config.yaml:") and fourth.endswith(", which had 15")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("model.layers", "set by  conf/model/gpt2_tiny.yaml:8 (chosen by conf/experiment/smoke.yaml)"),
        ("strategy.bucket_cap_mb", "(chosen by strategy=ddp on the command line)"),
        ("optimizer.lr", "written 6.0e-4"),
        ("nccl.variables.NCCL_PROTO", "set by  nccl.variables.NCCL_PROTO=Simple on the command line"),
        ("train.micro_batch_size", "set by  dtk at the launch, from ranks and devices"),
    ],
)
def test_why_of_other_sources(project: Path, capsys: Any, key: str, said: str) -> None:
    make_run(project)
    code, out, _ = answer_of(capsys, "show", "one", "--why", key)
    assert code == 0 and out.startswith(f"{key} = ") and said in out


def test_why_of_a_section(project: Path, capsys: Any) -> None:
    make_run(project)
    out = answer_of(capsys, "show", "one", "--why", "strategy")[1].splitlines()
    assert out[0] == "strategy=ddp: conf/strategy/ddp.yaml, chosen by strategy=ddp on the command line"
    assert {line.split()[0] for line in out[2:]} == {
        f"strategy.{key}" for key in default_configuration().plain["strategy"]
    }
    out = answer_of(capsys, "show", "one", "--why", "experiment")[1]
    assert out == "experiment=smoke: conf/experiment/smoke.yaml, chosen by experiment=smoke on the command line\n"


def test_every_key_has_an_origin_and_its_value(project: Path) -> None:
    run = make_run(project)
    origins = read_origins(run / "origins.json")
    stored = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in origins.values.items():
        section: Any = stored
        for part in key.split("."):
            section = section[part]
        assert section == value and origins.keys[key], key
    assert (run / "origins.json").stat().st_size < 40_000


def test_why_holds_when_the_files_are_gone(project: Path, capsys: Any) -> None:
    own = project / "mine"
    (own / "model").mkdir(parents=True)
    text = (
        "# mine\nname: wide\narchitecture: gpt\nvocab_size: 256\ncontext_length: 64\nlayers: 2\nheads: 2\nwidth: 64\n"
    )
    (own / "model" / "wide.yaml").write_text(text)
    make_run(project, typed=["model=wide", "data.sequence_length=32"], config_dir=own)
    (own / "model" / "wide.yaml").unlink()
    out = answer_of(capsys, "show", "one", "--why", "model.width")[1]
    assert out == f"model.width = 64\nset by  {own}/model/wide.yaml:8 (chosen by model=wide on the command line)\n"


def test_why_after_a_rerun_goes_on(project: Path) -> None:
    from dtk.config.resume import rerun

    first = make_run(project)
    again = rerun(first, ["train.steps=9", "strategy=fsdp"], None).composed.origins
    assert [item.by.split(":")[0] for item in again.keys["train.steps"]] == [
        "conf/config.yaml",
        "conf/experiment/smoke.yaml",
        "train.steps=3",
        "train.steps=9",
    ]
    assert again.values["train.steps"] == 9
    assert again.choices["strategy"].by == "strategy=fsdp" and again.choices["model"].option == "gpt2_tiny"
    assert "strategy.bucket_cap_mb" not in again.values
    (first / "origins.json").unlink()
    again = rerun(first, ["train.steps=9"], None).composed.origins
    assert [item.by for item in again.keys["train.steps"]] == ["one", "train.steps=9"]


def test_why_as_json(project: Path, capsys: Any) -> None:
    make_run(project)
    output = json.loads(answer_of(capsys, "show", "one", "--why", "train.steps", "--json")[1])
    assert output["keys"]["train.steps"]["value"] == 3
    assert output["keys"]["train.steps"]["set_by"][-1] == {"kind": "typed", "by": "train.steps=3", "written": ""}
    assert output["choice"] is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "runs/one has no record of what set its keys: dtk run keeps one"),
        ("{", "runs/one: origins.json is damaged"),
        ("[" * 100_000, "runs/one: origins.json is damaged"),
        ('{"schema_version": 1, "choices": {}, "keys": {"a": 3}}', "runs/one: origins.json is damaged"),
        ('{"schema_version": 9}', "runs/one was written by a newer dtk"),
        ('{"schema_version": 1, "choices": {}, "keys": {"train.steps": {"value": 1, "set_by": []}}}', "is damaged"),
    ],
)
def test_why_without_a_record_is_one_line(project: Path, capsys: Any, content: str | None, said: str) -> None:
    run = make_run(project)
    if content is None:
        (run / "origins.json").unlink()
    else:
        (run / "origins.json").write_text(content)
    code, out, err = answer_of(capsys, "show", "one", "--why", "train.steps")
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_a_mistyped_key_and_hostile_values(project: Path, capsys: Any) -> None:
    run = make_run(project)
    assert "did you mean train.steps?" in answer_of(capsys, "show", "one", "--why", "train.stps")[2]
    evil = {"kind": "typed", "by": "\x1b[2Jx", "written": "\n" * LONGEST}
    record = {"schema_version": 1, "choices": {}, "keys": {"seed": {"value": "\x1b", "set_by": [evil]}}}
    (run / "origins.json").write_text(json.dumps(record))
    out = answer_of(capsys, "show", "one", "--why", "seed")[1]
    assert "\x1b" not in out and out.count("\n") == 3


def test_what_dtk_writes_is_no_change_of_the_code(project: Path, capsys: Any) -> None:
    """Pages where one stands and below, another folder of runs, the record of a sweep; but code beside them is."""
    (project / "src").mkdir()
    (project / "src" / "a.py").write_text("a = 1\n")
    git(project, "add", "src")
    git(project, "commit", "-qm", "second")
    make_run(project, "two")
    for page in ("dtk-comparison.html", "dtk-report.html", "src/dtk-bench-comm.html"):
        (project / page).write_text("<html>")
    for folder in ("exp/more", "src"):
        (project / folder / "three").mkdir(parents=True)
        write_json(RunPaths(project / folder / "three").status, Status(state="finished"))
    (project / "exp" / "more" / "notes.txt").write_text("beside runs")
    (project / "elsewhere" / "s1" / "points").mkdir(parents=True)
    (project / "elsewhere" / "s1" / "sweep.json").write_text("{}")
    code, _, err = answer_of(capsys, "rerun", "two", "--cfg", "--strict")
    assert (code, err) == (0, "")
    (project / "src" / "b.py").write_text("b = 1\n")
    assert "none then, some now" in answer_of(capsys, "rerun", "two", "--cfg", "--strict")[2], (
        "src is code all the same"
    )


def test_the_runs_folder_that_the_run_names_does_not_count(project: Path, capsys: Any) -> None:
    make_run(project, typed=[*TYPED, "runs_folder=out"])
    (project / "out").mkdir()
    (project / "out" / "x.log").write_text("x")
    assert answer_of(capsys, "rerun", "one", "--cfg", "--strict")[0] == 0


def test_a_run_that_was_moved_does_not_say_where_the_rerun_is_written(
    project: Path, tmp_path: Path, capsys: Any
) -> None:
    """A folder that somebody handed over must not choose it; what is typed does, and so does a run in its place."""
    chosen = tmp_path / "chosen"
    run = make_run(project, typed=[*TYPED, f"runs_folder={chosen}"])

    def goes_to(*words: str) -> str:
        code, out, err = answer_of(capsys, "rerun", *words, "--cfg")
        assert (code, err) == (0, "")
        return str(yaml.safe_load(out)["runs_folder"])

    assert goes_to(str(run)) == str(project / "runs")
    assert goes_to(str(run), "runs_folder=typed") == str(project / "typed")
    chosen.mkdir()
    assert goes_to(str(run.rename(chosen / "one"))) == str(chosen)


def test_what_git_did_not_tell_is_no_difference(project: Path, capsys: Any) -> None:
    edited(project)
    run = make_run(project)
    manifest = json.loads((run / "manifest.json").read_text())
    write_json(run / "manifest.json", {**manifest, "git": {**manifest["git"], "diff_sha256": None}})
    err = answer_of(capsys, "rerun", "one", "--cfg")[2]
    assert "cannot be compared with that of one: git could not list the uncommitted changes then" in err
