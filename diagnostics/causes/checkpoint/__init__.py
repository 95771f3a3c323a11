"""Causes that lie between the nodes, one per file."""
