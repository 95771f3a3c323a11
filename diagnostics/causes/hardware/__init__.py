"""Causes that lie in a device itself, one per file."""
