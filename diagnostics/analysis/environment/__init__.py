"""The variables that NCCL, torch and gloo read: their catalogue and the linter over a set of them."""
