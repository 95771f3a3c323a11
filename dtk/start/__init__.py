"""Starts one point: with the ranks of this machine, on a cluster, or as a rank of torchrun or Slurm."""
