"""Why memory ran out, or will with more ranks or steps: one file for each cause."""
