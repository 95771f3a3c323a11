"""Causes related to a single device, one per file."""
