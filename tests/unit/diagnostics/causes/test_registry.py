"""Every cause is whole: its example is diagnosed, its texts can be made, and its relations name causes that exist."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.causes.registry import BRANCHES, built_in, collect
from diagnostics.causes.suspicions import TABLE, of_memory
from diagnostics.contract.causes import AnyCause
from diagnostics.contract.files import read_table
from diagnostics.contract.findings import EvidenceItem
from diagnostics.diagnose import diagnose
from tests.faults.truth import ROOT, TRUTH
from tests.unit.diagnostics.causes.examples import examples
from tests.unit.diagnostics.causes.leftovers import leftovers, scenario_of

CAUSES = built_in()
FOLDER = ROOT / "diagnostics/causes"
EXAMPLES = examples()
COUNTERED = [cause for cause in CAUSES if cause.example and cause.example.counter]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_the_example_is_diagnosed(cause: AnyCause, tmp_path: Path) -> None:
    """The example that docs/causes.md prints; what an injected fault leaves behind is diagnosed in `tests/faults`."""
    example = cause.example
    if example is None:
        assert cause.id in EXAMPLES, f"{cause.id} has no example (Cause.example)"
        return
    if example.kind == "fault":
        assert cause.id in TRUTH[example.text].causes
        promised = (ROOT / f"conf/fault/{example.text}.yaml").read_text(encoding="utf-8")
        assert f"# Diagnosis: {cause.id}" in promised
        return
    for name, content in leftovers(cause.id, example).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    ranks = scenario_of(cause.id).ranks if example.kind == "timeline" else example.ranks
    report = diagnose(tmp_path)
    assert report.root_causes, [
        finding.finding.cause for finding in report.findings if finding.finding.status == "confirmed"
    ]
    first = report.root_causes[0]
    assert (first.cause, first.ranks) == (cause.id, ranks)
    assert report.outcome == (example.outcome or cause.outcome)


@pytest.mark.parametrize("cause", COUNTERED, ids=lambda cause: cause.id)
def test_the_counterexample_does_not_confirm_it(cause: AnyCause, tmp_path: Path) -> None:
    assert cause.example is not None
    for name, content in leftovers(cause.id, replace(cause.example, text=cause.example.counter)).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    statuses = [finding.finding.status for finding in diagnose(tmp_path).findings if finding.finding.cause == cause.id]
    assert statuses and "confirmed" not in statuses


@pytest.mark.parametrize("cause", EXAMPLES)
def test_what_a_small_job_leaves_behind_is_diagnosed(cause: str, tmp_path: Path) -> None:
    example = EXAMPLES[cause]
    example.write(tmp_path)
    report = diagnose(tmp_path)
    assert report.root_causes, [
        finding.finding.cause for finding in report.findings if finding.finding.status == "confirmed"
    ]
    first = report.root_causes[0]
    (outcome,) = (expected.outcome for expected in CAUSES if expected.id == cause)
    assert (first.cause, first.ranks) == (cause, example.ranks)
    assert report.outcome == (example.outcome or outcome)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_relations_name_causes_that_exist(cause: AnyCause) -> None:
    ids = collect().ids
    for reason in cause.explained_by:
        for pattern in reason.causes:
            assert any(fnmatchcase(name, pattern) for name in ids), pattern


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_it_says_what_rules_it_out_and_what_it_is_based_on(cause: AnyCause) -> None:
    """That nothing does is said of the causes whose decision, with the helpers that it uses, rules out nothing."""
    assert cause.ruled_out_by.strip() and cause.source.strip()
    table = FOLDER / f"{cause.id.replace('.', '/')}.yaml"
    how = read_table(table).get("decided_by", {"module": table.stem})
    code = (table.with_name(f"{how['module']}.py")).read_text(encoding="utf-8")
    for package, names in re.findall(r"^from diagnostics\.causes((?:\.\w+)*) import (.+)$", code, re.MULTILINE):
        for path in (package, *(f"{package}.{name}" for name in names.split(", "))):
            helper = FOLDER / f"{path.strip('.').replace('.', '/')}.py"
            code += helper.read_text(encoding="utf-8") if package != ".declared" and helper.is_file() else ""
    never = ".ruled_out(" not in code or "elsewhere" in read_table(table)
    assert bool(re.search(r"\b(?:nothing|only a run that finished), because ", cause.ruled_out_by)) == never


def test_every_branch_leads_to_a_top_event() -> None:
    above = {branch.id: branch.above for branch in BRANCHES}
    for branch in above:
        steps = 0
        while above[branch]:
            branch, steps = above[branch], steps + 1
            assert steps < len(above)


@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if cause.suspected is not None], ids=lambda cause: cause.id
)
def test_it_is_suspected_by_clues_that_exist(cause: AnyCause) -> None:
    row = cause.suspected
    assert row is not None and row.decide in TABLE["decide"]
    if row.explains == "end":
        assert row.clues.keys() <= TABLE["says"].keys() and not row.says
    else:
        assert row.says and row.says.keys() - {"default"} <= row.clues.keys()
        of_memory(
            [RanOut(0, "cuda", EvidenceItem("log", "job.log", "x"))]
        )  # KeyError for a clue that it does not have.


def literals(path: Path) -> Iterator[str]:
    """Yield the strings in a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
            yield node.value


def test_groups_are_those_that_relations_name_and_no_relation_names_an_unknown_one() -> None:
    rows = [read_table(path)["cause"] for path in FOLDER.glob("*/[!_]*.yaml")]
    used = {name for row in rows for rule in row.get("explained_by", ()) for name in rule["causes"] if name.isupper()}
    declared_groups = {group for cause in CAUSES for group in cause.groups}
    assert declared_groups == used and len(used) > 5
    assert not used & {name for cause in CAUSES for rule in cause.explained_by for name in rule.causes}, "not replaced"


def test_no_table_but_those_of_causes_names_a_cause() -> None:
    """A new cause is in its own table, and in the relations of others; which group it is in, it says itself."""
    ids = re.compile(r"(?<![\w.])(?:" + "|".join(re.escape(cause.id) for cause in CAUSES) + r")(?![\w.])")
    of_causes = set(FOLDER.glob("*/[!_]*.yaml"))
    paths = [path for path in (ROOT / "diagnostics").rglob("*.yaml") if path not in of_causes]
    texts = {path: re.sub(r"(?m)^ *#.*$", "", path.read_text(encoding="utf-8")) for path in paths}
    assert len(of_causes) == len(CAUSES) and len(paths) > 20
    assert {str(path.relative_to(ROOT)): ids.findall(text) for path, text in texts.items() if ids.search(text)} == {}


def test_no_module_but_its_own_names_a_cause() -> None:
    """What sets a cause apart is data of its own file, or a relation; so a new cause needs no change elsewhere."""
    ids = re.compile(r"(?<![\w.])(?:" + "|".join(re.escape(cause.id) for cause in CAUSES) + r")(?![\w.])")
    named = {
        (str(path.relative_to(ROOT)), match[0])
        for package in ("diagnostics", "dtk")
        for path in (ROOT / package).rglob("*.py")
        for text in literals(path)
        for match in ids.finditer(text)
        if path != FOLDER / f"{match[0].replace('.', '/')}.py"
    }
    assert named == set()


def test_a_gate_lies_below_the_one_that_its_id_names() -> None:
    above = {branch.id: branch.above for branch in BRANCHES}
    assert above["hang.late"] == "hang" and above["hang"] == ""
    assert set(above.values()) - {""} <= above.keys()


def test_each_gate_has_a_title_of_its_own() -> None:
    titles = [branch.title for branch in BRANCHES]
    assert all(titles) and len(set(titles)) == len(titles)
