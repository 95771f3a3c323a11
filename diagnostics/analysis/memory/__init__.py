"""Memory of the ranks of a job: sizes, gathers, curves, categories. Decides nothing."""
