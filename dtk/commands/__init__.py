"""One file per command of `dtk`: options and output only."""
