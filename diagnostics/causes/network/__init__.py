"""Causes between the nodes, one per file."""
