"""Causes related to the network between nodes, one per file."""
