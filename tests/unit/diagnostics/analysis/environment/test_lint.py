"""The linter over a whole set of variables: order, and no value that makes it fail."""

from hypothesis import given, strategies as st

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import lint
from diagnostics.causes.lint_texts import lint_text
from diagnostics.causes.registry import by_id
from tests.unit.diagnostics.analysis.environment.lints import RDMA


def test_the_worst_comes_first():
    listed = lint({"NCCL_DEBUG": "INFO", "NCCL_QUUX": "1", "NCCL_BUFFSIZE": "4M"}, None, None, {})
    assert [item.severity for item in listed] == ["error", "warning", "note"]


@given(
    st.dictionaries(st.sampled_from([*catalogue().nccl, *catalogue().torch, "NCCL_X", "PATH"]), st.text(max_size=20)),
    st.sampled_from([None, (2, 18, 3), (2, 30, 7)]),
    st.sampled_from([None, 1, 2]),
)
def test_no_value_makes_it_fail(variables, nccl_version, nnodes):
    for item in lint(variables, nccl_version, nnodes, {**RDMA, "nproc": 2, "nvlink": True}):
        text = lint_text(item)
        assert text.cause in by_id()
        assert text.message and text.fix
