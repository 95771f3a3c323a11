"""Assigns files to ranks, selects one of several files for a rank, and checks that all are from one job."""
