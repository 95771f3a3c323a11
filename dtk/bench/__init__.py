"""`dtk bench comm`: how fast the collectives of this machine are, and under which of two presets they are faster."""
