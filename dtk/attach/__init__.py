"""`dtk attach`: observes a running job from outside. Finds its ranks, collects evidence and changes nothing in them."""
