"""Causes of a slow step, one per file; all are decided from `analysis.step_profile`."""
