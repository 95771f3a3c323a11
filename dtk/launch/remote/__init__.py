"""Jobs beyond this machine: what was composed here is written down, rendered for a cluster, submitted, and read there.

`submission` freezes a run, `slurm`, `kubernetes` and `skypilot` render it, `submit` hands it over, `rank` is the
process of a rank on the cluster. Nothing here composes.
"""
