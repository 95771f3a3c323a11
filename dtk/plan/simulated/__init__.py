"""The simulated engine: the real step of one rank on tensors without memory, and what it needed."""
