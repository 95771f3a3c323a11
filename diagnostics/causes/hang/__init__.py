"""Causes of runs that stopped making progress."""
