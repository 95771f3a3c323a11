"""Starts the ranks: locally by the elastic agent, or joins those of torchrun and Slurm."""
