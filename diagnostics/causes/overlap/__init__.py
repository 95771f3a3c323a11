"""Causes of a slow step, one per file, decided from `analysis.step_profile`."""
