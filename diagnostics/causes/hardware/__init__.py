"""Causes in a device itself, one per file."""
