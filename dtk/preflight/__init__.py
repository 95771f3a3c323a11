"""Proves without the machines that a job's steps end on every rank, or names the first point where ranks part."""
