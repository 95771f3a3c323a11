"""Proves without the machines that every rank finishes a job's steps, or names the first point where ranks diverge."""
