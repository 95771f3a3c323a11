"""Sweeps: many runs from one command, by W&B's sweep files or lists, and the record of which point became which run."""
