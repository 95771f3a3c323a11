"""One module per command of `dtk`. Each defines the options and the output only."""
