"""Causes of invalid or diverging numbers in training, one per file."""
