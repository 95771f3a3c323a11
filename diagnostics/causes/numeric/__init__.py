"""Why the figures went wrong: one file for each cause."""
