"""`dtk ui`: a local page of all runs, live and ended, built from the same documents as every other report."""
