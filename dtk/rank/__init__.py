"""One rank of a run: the process, and what it does from configuration to training."""
