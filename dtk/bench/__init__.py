"""`dtk bench comm`: measures the collectives of this machine and compares two NCCL presets."""
