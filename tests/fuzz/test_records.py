"""A thousand jobs with absurd values on every run of the tests; the long run is `benchmarks/fuzz_records.py`."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.records import ABSURD, OPERATIONS, RENDERERS, Edit, edited, explained, jobs, write

EDITS = st.lists(
    st.tuples(
        st.integers(0, 999),
        st.lists(st.integers(0, 999), max_size=7),
        st.sampled_from(OPERATIONS),
        st.integers(0, len(ABSURD) - 1),
    ),
    max_size=5,
)


@given(st.integers(0, len(jobs()) - 1), EDITS)
@settings(max_examples=1000, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_absurd_values_in_valid_files_end_in_a_report(number: int, edits: list[Edit]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(edited(number, edits), Path(folder))
        assert explained(Path(folder), (number + len(edits)) % (2 * len(RENDERERS))) == ""
