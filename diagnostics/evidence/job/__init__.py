"""Whose a file is: which rank, which of several counts, and whether all are of one job."""
