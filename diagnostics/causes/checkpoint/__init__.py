"""Causes related to loading a checkpoint, one per file."""
