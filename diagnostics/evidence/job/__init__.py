"""Assigns files to ranks: which rank, which of several files counts, and whether all are of one job."""
