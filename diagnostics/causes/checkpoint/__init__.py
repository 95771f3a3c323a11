"""Causes that lie in what is loaded from a checkpoint, one per file."""
