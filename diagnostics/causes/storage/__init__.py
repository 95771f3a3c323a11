"""Causes in storage, one per file."""
