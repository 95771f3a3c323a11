"""Starts the ranks: locally with the elastic agent, or joins those of torchrun and Slurm."""
