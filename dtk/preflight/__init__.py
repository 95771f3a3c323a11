"""Proves, without the machines, that all ranks finish a job's steps, or finds the first point where they diverge."""
