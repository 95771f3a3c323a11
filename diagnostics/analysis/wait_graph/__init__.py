"""Which rank waits for which in a stalled job: the graph, its cycles, and what they show about single calls."""
