"""Names of operations as `dtk bench comm --op` takes them."""

import pytest

from dtk.bench.bandwidth import OPERATIONS
from dtk.commands.bench import _operations
from dtk.errors import DtkError


def test_operations_each_once_in_the_order_typed() -> None:
    assert _operations(None) == tuple(OPERATIONS)
    assert _operations("all_gather, all_reduce,all_gather") == ("all_gather", "all_reduce")
    with pytest.raises(DtkError, match="did you mean all_reduce"):
        _operations("all_reduc")
    with pytest.raises(DtkError, match="operations: "):
        _operations("")
