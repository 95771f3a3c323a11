"""What the documents say is true: their commands run, their table is the one that dtk prints."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.commands.main import make_parser
from dtk.commands.strategies import render
from dtk.run import _parse as parse_run
from dtk.sharding.registry import CONFIG_TYPES
from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "runs" / "README.md"]
RUNNABLE = [ROOT / "README.md", ROOT / "docs" / "run.md", *(ROOT / "docs" / "guides").glob("*.md")]
TUTORIAL = ROOT / "docs" / "tutorial.md"


def commands(*documents: Path) -> list[str]:
    """The lines of the blocks marked as bash, without what is said of them."""
    blocks = [block for path in documents for block in re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL)]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(re.sub(r"\s+#.*", "", line) for line in lines if line))


def test_all_commands_are_covered():
    """`make test` is what runs this test, test_install.py runs the other three, and the rest are run below."""
    elsewhere = {"make run", "make test", "pip install '.[train]'", "pip install ."}
    assert set(commands(*RUNNABLE)) == elsewhere | set(RUN)
    makefile = (ROOT / "Makefile").read_text()
    assert "-m dtk.run strategy=fsdp model=gpt2 $(ARGS)" in makefile


RUN = [command for command in commands(*RUNNABLE) if not command.startswith(("make ", "pip "))]
LONG = (
    "dtk run -m",
    "python -m dtk.run -m",
    "dtk compare",
    "dtk sweep",
    "dtk tune",
    "dtk bench",
    "dtk doctor",
    "dtk demo",
    "torchrun",
    "python -m dtk.run strategy=hsdp",
    "python -m dtk.run model=bert_tiny",
    "dtk plan model=llama3_8b",
    "dtk plan model=llama3_70b",
)
"""What takes minutes, and has tests of its own that do not."""


def lengths(command: str) -> object:
    """The command, among those of `make test-all` when it is long."""
    return pytest.param(command, marks=pytest.mark.extended) if command.startswith(LONG) else command


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A folder with a run in it."""
    place = tmp_path_factory.mktemp("smoke")
    run_module(["dtk.run", "experiment=smoke"], environment(), place, 60).check_returncode()
    return place


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [lengths(command) for command in RUN])
def test_the_command_of_the_readme_works(command, tmp_path, request):
    shutil.copy(ROOT / "README.md", tmp_path)
    if command.startswith("dtk compare"):
        points = ["dtk.run", "-m", "strategy=ddp,fsdp", "model=gpt2_tiny", "train.steps=8", "checkpoint=off"]
        run_module(points, environment(), tmp_path, 300).check_returncode()
    if command.startswith("dtk diagnose last"):
        shutil.copytree(request.getfixturevalue("smoke") / "runs", tmp_path / "runs")
    program, *arguments = shlex.split(command)
    if program == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", *arguments]
        process = subprocess.run(launcher, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=580)
    else:
        module = ["dtk", *arguments] if program == "dtk" else arguments[1:]
        process = run_module(module, environment(), tmp_path, 580)
    fine = (0, 1) if command == "dtk doctor" else (0,)  # This machine may have something for it to find.
    assert process.returncode in fine, process.stdout + process.stderr
    assert process.stdout or command == "dtk ls"


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_the_tutorial_works_from_top_to_bottom(tmp_path):
    text = TUTORIAL.read_text()
    for before, block in re.findall(r"([^\n]*)\n```bash\n(.*?)```", text, re.DOTALL):
        for command in filter(None, block.splitlines()):
            if command.startswith("pip "):
                continue
            process = run_module(shlex.split(command), environment(COLUMNS="100"), tmp_path, 300)
            code = 1 if "exit code 1" in before else 0
            assert process.returncode == code and process.stdout, (command, process.stdout, process.stderr)
    assert (tmp_path / "comparison.html").exists() and (tmp_path / "report.html").exists()


def typed_on(page: Path) -> list[str]:
    """Every command of dtk in the blocks of a page, whether it is run by a test or not, without what is said of it."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [
        line.strip().removeprefix("$ ") for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()
    ]
    lines = [re.split(r" +# | {3,}| [|>] | && ", line)[0].replace("python -m dtk.run", "dtk run") for line in lines]
    return [line for line in lines if line.startswith("dtk ") and "..." not in line and "<" not in line]


def test_every_command_of_every_page_is_one_that_dtk_takes():
    lines = sorted({line for page in DOCUMENTS for line in typed_on(page)})
    assert len(lines) > 100
    for line in lines:
        words = shlex.split(line.partition(" -- ")[0], comments=True)[1:]
        if {"-h", "--help", "--version"} & {*words}:
            continue
        if words[0] == "run":
            parse_run(words[1:])
            continue
        parser, commands = make_parser(words[:1])
        assert words[0] in commands.choices, line
        arguments, rest = parser.parse_known_args(words)
        assert not [word for word in rest if word.startswith("-") or not hasattr(arguments, "overrides")], line


def test_pages_made_from_the_source_are_up_to_date():
    page = ROOT / "docs" / "configuration.py"
    assert runpy.run_path(str(page))["render"]() == page.with_suffix(".md").read_text(), f"run python {page}"


def test_the_site_builds_and_every_page_is_in_it(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed (make docs)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")} >= pages
    loaded = r"""(?:src=|<link[^>]*rel="stylesheet"[^>]*href=|@import |url\()["']?(https?://[^"') ]+)"""
    outside = {url for path in tmp_path.rglob("*.html") for url in re.findall(loaded, path.read_text())}
    assert not outside, "the pages need no network"


def test_the_strategy_table_is_the_printed_one():
    text = (ROOT / "docs" / "strategies.md").read_text()
    table = text.split("checked by a test -->\n")[1].split("<!-- end of table -->")[0]
    assert table == render(in_markdown=True)


def test_every_strategy_has_facts_and_a_file():
    files = (ROOT / "conf" / "strategy").glob("*.yaml")
    presets = "# @package _global_"
    assert set(CONFIG_TYPES) == {path.stem for path in files if not path.read_text().startswith(presets)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not link.startswith("http"):
            assert (document.parent / link).exists(), link
