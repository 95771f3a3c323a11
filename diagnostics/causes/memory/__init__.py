"""Why memory ran out, or will on more ranks or after more steps: one file for each cause."""
