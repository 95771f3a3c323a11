"""Why the numbers of training went wrong: one file for each cause."""
