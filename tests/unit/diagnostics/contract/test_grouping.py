from diagnostics.contract.grouping import grouped


def test_values_keep_their_order_and_another_key_has_none() -> None:
    groups = grouped([("b", 1), ("a", 2), ("b", 3)])
    assert list(groups.items()) == [("b", [1, 3]), ("a", [2])]
    assert groups["c"] == [] and not grouped(())
