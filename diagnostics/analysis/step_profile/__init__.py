"""Where the time of a training step goes, per rank and over all ranks, from profiler traces. No verdicts."""
