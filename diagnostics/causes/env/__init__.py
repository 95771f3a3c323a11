"""Causes that lie in the environment, one per file; all are decided from `analysis.environment.job`."""
