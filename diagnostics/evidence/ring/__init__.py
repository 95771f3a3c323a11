"""dtk's ring of collectives: the mapped file that survives a rank's death."""
