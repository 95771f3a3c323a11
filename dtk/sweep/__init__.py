"""Sweeps: many runs from one command, with W&B's sweep files or lists on the command line.

Owns the order of the runs and the record of which point became which run; composing and launching are `dtk.run`'s.
"""
