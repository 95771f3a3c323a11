"""Models that `model=` selects."""
