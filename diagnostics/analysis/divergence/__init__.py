"""Which ranks' calls differ, and how: one owner for post-mortems, the live watch, watchdog logs and the preflight.

`find.find` compares the histories of all ranks, `find.between` the sides of one `Vote`, `single_calls` one call of each
rank, `explanation.explain` two lists of calls. `identity` alone defines when two calls are the same.
"""
