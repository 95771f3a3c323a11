"""The simulated engine: runs the real step of one rank on fake tensors and records what it needs."""
