"""Flight-recorder dumps of torch, and dtk's black boxes."""
