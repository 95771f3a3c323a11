"""Causes that lie in storage, one per file."""
