"""One rank of a run: its process, from configuration to training."""
