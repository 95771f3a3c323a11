"""How ranks and bytes are written."""

import pytest

from diagnostics.contract.formatting import bytes_text, numbers_text, ranks_spoken, ranks_text


@pytest.mark.parametrize(
    ("ranks", "listed", "spoken"),
    [
        ([], "", "no rank"),
        ([3], "rank 3", "rank 3"),
        ([1, 0], "ranks 0-1", "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0-1, 3", "ranks 0, 1 and 3"),
        ([*range(7), 9, 9], "ranks 0-6, 9", "ranks 0-6 and 9"),
    ],
)
def test_ranks(ranks: list[int], listed: str, spoken: str) -> None:
    assert (ranks_text(ranks), ranks_spoken(ranks)) == (listed, spoken)


def test_many_ranks_are_cut() -> None:
    assert numbers_text(range(0, 40, 2)).endswith("20, 22, and 8 more")
    assert ranks_spoken(range(0, 40, 2)).endswith("20, 22 and 8 more")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3.28 * 2**30, "3.28 GiB"), (-1536, "-1.5 KiB"),
     (1012 * 1024, "1012 KiB"), (2**60, "1024 PiB")],
)  # fmt: skip
def test_bytes(value: float, text: str) -> None:
    assert bytes_text(value) == text
