"""Logs of any size, tracebacks in them, error files: what they say, and which rank said it."""
