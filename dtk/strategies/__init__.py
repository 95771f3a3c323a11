"""Strategies that `strategy=` selects: one small class each on a common base."""
