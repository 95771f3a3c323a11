"""`dtk doctor`: checks whether this machine, or these nodes, can train, below the level of the model's code."""
