"""Memory of the ranks of a job, as evidence shows it: sizes, gathers, curves, categories. Decides nothing."""
