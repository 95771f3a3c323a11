"""Hangs of which no recorder tells: only logs and stacks are left."""
