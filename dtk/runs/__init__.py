"""The commands that list, show, repeat and remove runs: `dtk ls`, `show`, `rerun`, `rm`, a file each.

Options and output only; what a run folder holds is read by `diagnostics.runs.find`.
"""
