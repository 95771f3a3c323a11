"""Causes in the environment, one per file, decided from `analysis.environment.job`."""
