"""Keys of the data: what speed is counted in."""

import pytest

from dtk.config.schema.data import CustomData, DataConfig, SyntheticData, TextData


@pytest.mark.parametrize(
    ("section", "unit"),
    [
        (TextData(path="text"), "token"),
        (SyntheticData(sequence_length=1), "token"),
        (CustomData(_target_="mine.Images"), "sample"),
        (CustomData(_target_="mine.Sentences", sequence_length=64), "token"),
    ],
)
def test_samples_are_counted_only_where_they_are_no_sequences(section: DataConfig, unit: str) -> None:
    assert section.unit == unit
