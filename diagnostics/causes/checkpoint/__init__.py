"""Causes in what is loaded from a checkpoint, one per file."""
