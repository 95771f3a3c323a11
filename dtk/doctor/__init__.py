"""`dtk doctor`: whether this machine, or these nodes, are fit to train. Checks everything below the model's code."""
