"""Logs of any size, tracebacks in them, error files: their facts, and the rank of each."""
