"""Causes related to storage, one per file."""
