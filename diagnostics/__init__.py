"""Diagnoses runs from the files that they left. Imports neither dtk nor torch nor hydra."""
