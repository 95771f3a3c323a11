"""Explains runs: reads what they left behind. Imports neither dtk nor torch nor hydra."""
