"""Causes of jobs that stopped making progress, one per file."""
