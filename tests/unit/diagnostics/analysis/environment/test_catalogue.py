import subprocess
import sys
from collections import Counter

import pytest

from diagnostics.analysis.environment.catalogue import DATA, catalogue
from diagnostics.analysis.environment.rules_values import _CHECKS, _SIMPLE
from tests.work import calls_in


def keys_of(file):
    """Names as they stand in the file, so that one that stands twice is seen."""
    lines = (DATA / file).read_text().splitlines()
    return [
        line.strip().split(":")[0] for line in lines if line.startswith("  ") and line[2:3].isupper() and ":" in line
    ]


def test_it_holds_the_242_names_of_nccl_2_30_7_once_each():
    book = catalogue()
    assert len(book.nccl) == 242
    assert book.newest == (2, 30, 7)
    for file in ("nccl.yaml", "names.yaml", "torch.yaml"):
        twice = [name for name, count in Counter(keys_of(file)).items() if count > 1]
        assert not twice, file


def test_it_is_parsed_by_the_loader_in_c():
    """The one in Python makes a million calls for it, which `dtk nccl` would pay at every start."""
    catalogue.cache_clear()
    assert calls_in(catalogue)[1] < 150_000


def test_no_name_is_both_current_and_gone():
    book = catalogue()
    tables = book.nccl, book.torch, book.removed, book.legacy, book.removed_legacy
    groups = [*tables, book.foreign, book.dead, book.advice]
    for i, names in enumerate(groups):
        for others in groups[i + 1 :]:
            assert not set(names) & set(others)


@pytest.mark.parametrize("variable", [*catalogue().nccl.values(), *catalogue().torch.values()], ids=lambda v: v.name)
def test_every_entry_is_consistent(variable):
    assert variable.type in _CHECKS | _SIMPLE
    assert (variable.since is not None) == variable.name.startswith("NCCL_")
    if variable.since:
        assert (1, 2) <= variable.since <= catalogue().newest
    if isinstance(variable.default, int) and variable.low is not None:
        assert variable.low <= variable.default <= variable.high
    if variable.default not in (None, "auto") and variable.values:
        assert variable.default in variable.values
    assert (variable.deprecated is not None) == bool(variable.use)


def test_successors_exist():
    book = catalogue()
    names = {*book.nccl, *book.torch}
    for entry in [*book.nccl.values(), *book.removed.values()]:
        assert not entry.use or entry.use in names
    for table in (book.legacy, book.removed_legacy, book.typos):
        assert set(table.values()) <= names


def test_it_imports_no_torch():
    code = "import sys; from diagnostics.analysis.environment import job, lint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
