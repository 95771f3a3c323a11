"""The tests mirror the tree: from the name of a module follows that of its tests, and the other way round."""

from pathlib import Path

import pytest

from diagnostics.contract.files import read_table

ROOT = Path(__file__).resolve().parents[2]
CODE = [path.relative_to(ROOT) for package in ("dtk", "diagnostics") for path in ROOT.joinpath(package).rglob("*")]
MODULES = {
    path.with_suffix("") for path in CODE if path.suffix == ".py" and not {"__init__.py", "templates"} & {*path.parts}
}
DECLARED = {
    path.with_suffix("") for path in CODE if path.suffix == ".yaml" and path.parts[:2] == ("diagnostics", "causes")
}
"""A cause may consist of a YAML file alone."""
SHOWN = {
    module
    for module in DECLARED & MODULES
    if {"example", "counterexample"} <= {*(table := read_table(ROOT / f"{module}.yaml")), *table.get("cause", ())}
}
"""Causes with an example and a counterexample, both of which `test_registry.py` diagnoses."""
PACKAGES = {path.parent for path in CODE if path.name == "__init__.py"}
BY_SUBJECT = {"browser", "faults", "fuzz", "gpu", "house", "slurm"}
"""Folders whose tests are no module's; CONTRIBUTING.md says what each is for."""


def folder_of(test: Path) -> Path:
    """Return the folder of the code whose tests are in the folder of a test below tests/unit."""
    inside = test.parent.relative_to("tests/unit")
    return inside if inside.parts[:1] == ("diagnostics",) else Path("dtk", inside)


def subjects(test: Path) -> set[str]:
    """Return the names with which a test file may begin: the modules of its folder, and the package itself."""
    if test.parts[1] == "cli":
        return {"run", *(path.name for path in MODULES if path.parent == Path("dtk/commands"))}
    if test.parts[1] == "dist":
        return {path.name.strip("_") for path in MODULES | PACKAGES}
    folder = folder_of(test)
    return {path.name.strip("_") for path in MODULES | DECLARED if path.parent == folder} | {folder.name}


def strays(tests: list[Path]) -> list[str]:
    """Return what is wrong with the place of each test file whose subject cannot be derived from it."""
    wrong = []
    for test in tests:
        if test.parts[1] in BY_SUBJECT:
            continue
        if test.parts[1] not in ("unit", "cli", "dist"):
            wrong.append(f"{test}: tests are in tests/unit, cli, dist, {', '.join(sorted(BY_SUBJECT))}")
        elif not any(f"{test.stem}_".startswith(f"test_{name}_") for name in subjects(test)):
            place = (
                f"{folder_of(test)}/"
                if test.parts[1] == "unit"
                else "dtk/commands/"
                if test.parts[1] == "cli"
                else "dtk/"
            )
            wrong.append(
                f"{test}: {place} has no module of that name. Call it test_<module>.py or test_<module>_<topic>.py, "
                f"or test_<package>_<topic>.py if it tests a package; a rule for all code is in tests/house/"
            )
    return wrong


def files() -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted(ROOT.joinpath("tests").rglob("test_*.py"))]


def test_every_test_file_is_named_after_what_it_tests() -> None:
    tests = files()
    assert len(tests) > 500, "the tests were not listed"
    assert not (wrong := strays(tests)), "\n".join(wrong)


def test_every_module_has_a_test_file() -> None:
    tests = set(files())
    missing = {
        module: test
        for module in MODULES - SHOWN
        if "templates" not in module.parts and (test := mirrored(module)) not in tests
    }
    assert not missing, "\n".join(f"{module}.py has no {test}" for module, test in missing.items())


def mirrored(module: Path) -> Path:
    """Return the test file of a module; it leaves out underscores around the name (`_shared`, `__main__`)."""
    inside = module.parent.relative_to("dtk") if module.parts[0] == "dtk" else module.parent
    return Path("tests/unit", inside, f"test_{module.name.strip('_')}.py")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("unit/plan/test_solve.py", ""),
        ("unit/plan/test_solve_limits.py", ""),
        ("unit/plan/test_plan_published.py", ""),
        ("unit/diagnostics/causes/env/test_ib_disabled.py", ""),
        ("unit/diagnostics/causes/memory/test_shared.py", ""),
        ("cli/test_run_stop.py", ""),
        ("dist/test_deepspeed.py", ""),
        ("unit/plan/test_scaling.py", "dtk/plan/ has no module of that name"),
        ("unit/plan/test_solver.py", "dtk/plan/ has no module of that name"),
        ("unit/diagnostics/report/test_survived.py", "diagnostics/report/ has no module of that name"),
        ("unit/nothing/test_solve.py", "dtk/nothing/ has no module of that name"),
        ("cli/test_torchrun.py", "dtk/commands/ has no module of that name"),
        ("more/test_solve.py", "tests are in tests/unit"),
    ],
)
def test_a_file_named_after_a_topic_is_refused(test: str, reason: str) -> None:
    wrong = strays([Path("tests", test)])
    assert [line.partition(": ")[2].startswith(reason) for line in wrong] == ([True] if reason else [])


def test_the_folders_that_mirror_nothing_are_explained() -> None:
    text = ROOT.joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parts[1] for path in files()}
    assert folders == BY_SUBJECT | {"unit", "cli", "dist"}
    assert [name for name in sorted(folders) if f"`tests/{name}`" not in text] == []
