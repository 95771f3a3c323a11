"""Causes related to the environment, one per file, decided from `analysis.environment.job`."""
