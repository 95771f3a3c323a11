"""The process of one rank, from configuration to training."""
