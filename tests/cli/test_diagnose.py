"""`dtk diagnose` as one types it: exit codes, formats, files, one line for every wrong input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from tests.cli.command import ROOT, environment
from tests.shared_data import shared_data

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())


def diagnose(*arguments: str | Path, cwd: Path = ROOT, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dtk", "diagnose", *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    return done.stderr


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What a job of someone else left behind: rank 1 raised."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rank_1.log").write_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/me/train.py", line 12, in <module>\n'
        "[rank1]:     main()\n"
        '[rank1]:   File "/home/me/train.py", line 8, in main\n'
        '[rank1]:     raise ValueError("bad batch 7")\n'
        "[rank1]: ValueError: bad batch 7\n"
    )
    return folder


def make_run(root: Path, name: str, state: str, started: str) -> Path:
    paths = RunPaths(root / "runs" / name)
    failure = Failure(rank=1, reason="ValueError: bad batch", step=3) if state == "failed" else None
    write_json(paths.status, Status(state=state, exit_code=int(bool(failure)), started=started, failure=failure))
    write_json(paths.manifest, {"schema_version": 1, "run_id": name, "world_size": 2})
    paths.config.write_text("strategy:\n  name: ddp\n")
    if failure:
        error = {
            "type": "ValueError",
            "message": "bad batch",
            "rank": 1,
            "traceback": "",
            "step": 3,
            "region": "forward",
        }
        write_json(paths.error(0, 1), error)
    return paths.root


def test_help_teaches_and_loads_little() -> None:
    done = diagnose("--help")
    assert done.returncode == 0
    code = "import sys\nfrom dtk.commands.main import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run(
        [sys.executable, "-c", code, "diagnose", "--help"], capture_output=True, text=True, env=environment()
    )
    names = loaded.stderr.split()
    assert {"torch", "hydra", "numpy", "rich", "msgspec", "yaml"}.isdisjoint(names)
    assert len(names) < 250
    for text in ("examples:", "exit code: 0 healthy; 1", "limits", "256 MiB", "200,000 files", "--limit-scale"):
        assert text in done.stdout
    loaded = "import sys; sys.argv[1:] = ['diagnose', '--help']; import dtk.commands.main, contextlib, io\n" + (
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): dtk.commands.main.main()\n"
        "print(*({'torch', 'yaml', 'rich', 'msgspec', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_answer_and_exit_code(job: Path) -> None:
    done = diagnose(job)
    assert done.returncode == 1 and done.stderr == ""
    first = done.stdout.splitlines()[:5]
    assert first[0].startswith("CRASHED: a rank raised an exception [hang.rank_raised")
    assert first[1].startswith("blame   rank 1") and "train.py:8" in first[2]


def test_diagnosing_loads_no_torch(job: Path) -> None:
    code = (
        "import sys; from dtk.commands.main import main; code = main(['diagnose', sys.argv[1]])\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(job)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_json_is_the_report_and_nothing_else(job: Path) -> None:
    done = diagnose(job, "--json")
    assert done.returncode == 1 and done.stderr == ""
    value = json.loads(done.stdout)
    jsonschema.validate(value, SCHEMA)
    assert [root_cause["cause"] for root_cause in value["root_causes"]] == ["hang.rank_raised"]
    assert diagnose(job, "--format", "json").stdout == done.stdout


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("markdown", "# CRASHED: "),
        ("html", "<!doctype html>"),
        ("mermaid", "flowchart TD"),
        ("dot", "digraph fault_tree {"),
        ("openpsa", "<?xml"),
    ],
)
def test_formats_and_output(job: Path, form: str, begins: str, tmp_path: Path) -> None:
    done = diagnose(job, "--format", form, "--output", tmp_path / "out")
    assert done.returncode == 1 and done.stdout == done.stderr == ""
    assert (tmp_path / "out").read_text().startswith(begins)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "out"]


def test_html_beside_the_terminal(job: Path, tmp_path: Path) -> None:
    done = diagnose(job, "--html", tmp_path / "a.html")
    assert f"page    {tmp_path / 'a.html'}" in done.stdout
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    done = diagnose("--html", job, cwd=tmp_path)
    assert done.returncode == 1 and (tmp_path / "dtk-report.html").exists()
    assert sorted(path.name for path in job.iterdir()) == ["rank_1.log"]


def test_a_run_keeps_its_report_and_is_found_by_id_and_last(tmp_path: Path) -> None:
    make_run(tmp_path, "20260101-000000-a-ddp-w2-aaaa", "finished", "2026-01-01T00:00:00+00:00")
    failed = make_run(tmp_path, "20260102-000000-b-ddp-w2-bbbb", "failed", "2026-01-02T00:00:00+00:00")
    done = diagnose("last", cwd=tmp_path)
    assert done.returncode == 1, done
    assert f"page    runs/{failed.name}/report/report.html" in done.stdout
    value = json.loads((failed / "report" / "report.json").read_text())
    jsonschema.validate(value, SCHEMA)
    assert (failed / "report" / "report.md").read_text().startswith("# ")
    assert sorted(path.name for path in (failed / "report").iterdir()) == ["report.html", "report.json", "report.md"]
    assert diagnose("20260102", "--json", cwd=tmp_path).stdout == diagnose(failed.name, "--json", cwd=tmp_path).stdout
    assert diagnose("20260101", cwd=tmp_path).stdout.startswith("HEALTHY: ")
    assert diagnose("20260101", cwd=tmp_path).returncode == 0


def test_diagnosing_twice_says_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20260102-000000-b-ddp-w2-bbbb", "failed", "2026-01-02T00:00:00+00:00")
    assert diagnose(run).stdout == diagnose(run).stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_run_is_one_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20260102-000000-b-ddp-w2-bbbb", "failed", "2026-01-02T00:00:00+00:00")
    run.chmod(0o555)
    done = diagnose(run)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "not written" in done.stderr


def test_a_report_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20260102-000000-b-ddp-w2-bbbb", "failed", "2026-01-02T00:00:00+00:00")
    (run / "report").write_text("a file in its place")
    done = diagnose(run)
    assert done.returncode == 1 and done.stdout
    assert done.stderr.count("\n") == 1 and "the report was not written into the run folder" in done.stderr


def test_colour(job: Path) -> None:
    assert "\x1b[" not in diagnose(job).stdout
    assert "\x1b[" in diagnose(job, "--color", "always", NO_COLOR="1").stdout
    assert "\x1b[" not in diagnose(job, "--color", "never").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_in_a_terminal(job: Path, more: dict[str, str], coloured: bool) -> None:
    import pty

    ours, theirs = pty.openpty()
    settings = environment(**{"TERM": "xterm", **more})
    if not more.get("NO_COLOR"):
        settings.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-m", "dtk", "diagnose", job], cwd=ROOT, env=settings, stdout=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait() == 1
    assert (b"\x1b[" in shown) == coloured and b"hang.rank_raised" in shown


def test_wrong_input_is_one_line(job: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "bad.yaml").write_text("id: x\n")
    assert 'no run "/nowhere"' in one_line(diagnose("/nowhere"))
    assert "no PATH is given" in one_line(diagnose())
    one_line(diagnose(empty))
    assert "no last run" in one_line(diagnose("last", cwd=tmp_path))
    assert "bad.yaml: Object missing required field `title`" in one_line(diagnose(job, "--tree", tmp_path / "bad.yaml"))
    assert "invalid choice: 'pdf'" in one_line(diagnose(job, "--format", "pdf"))
    assert "'0' is not a number above 0" in one_line(diagnose(job, "--limit-scale", "0"))
    assert "cannot write" in one_line(diagnose(job, "--output", tmp_path / "no" / "such" / "folder"))
    assert "contradict" in one_line(diagnose(job, "--json", "--format", "dot"))


def test_did_you_mean() -> None:
    done = subprocess.run([sys.executable, "-m", "dtk", "diagnos"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, 'dtk: there is no command "diagnos" - did you mean diagnose?\n')
    done = subprocess.run([sys.executable, "-m", "dtk", "xyzzy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "strategies" in done.stderr


def test_names_and_order_of_files_do_not_matter(tmp_path: Path) -> None:
    dumps = sorted(shared_data("flight/gloo/missing").glob("tr_?"))
    first, other = tmp_path / "a" / "job", tmp_path / "b" / "job"
    first.mkdir(parents=True)
    other.mkdir(parents=True)
    for dump in dumps:
        shutil.copy(dump, first / dump.name)
    for dump in reversed(dumps):
        shutil.copy(dump, other / f"host-{9 - int(dump.name[-1])}.site_rank_{dump.name[-1]}")
    reports = [json.loads(diagnose("job", "--json", cwd=path.parent).stdout) for path in (first, other)]
    for value in reports:
        for finding in (*value["root_causes"], *value["findings"]):
            for item in finding["evidence"]:
                item["file"] = item["file"][-1]
    assert reports[0]["root_causes"][0]["ranks"] == [2]
    assert reports[0]["root_causes"] == reports[1]["root_causes"] and reports[0]["outcome"] == reports[1]["outcome"]
