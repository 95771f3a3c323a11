"""Who waits for whom when a job stands still: the graph, its cycles, and what they show about single calls."""
