"""The time of a step on declared or measured hardware."""
