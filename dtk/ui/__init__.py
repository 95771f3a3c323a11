"""`dtk ui`: a local page of all runs, live and ended, made of the same documents as every other report."""
