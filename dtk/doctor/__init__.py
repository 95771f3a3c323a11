"""`dtk doctor`: is this machine, are these nodes, fit to train? Looks at everything below the model's code."""
