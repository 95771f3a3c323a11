"""Which ranks' calls differ, and how: one owner for post-mortems, the live watch, watchdog logs and the preflight.

`find.find` answers for all ranks of a job from their histories (`diagnostics.analysis.histories`). `find.between`
compares the sides of one `Vote`, for callers that hold histories in memory: count the sides with `count_votes`, and
hand over a function that returns a rank's calls. `single_calls` serves those that know one call of each rank, and
nothing outside this folder makes a `Divergence`. `explanation.explain` compares two lists of calls. The result is
data: who is in the minority, what it did (`Kind`), the calls, the evidence with its weights, and other kinds that
explain the calls as well. When two calls are the same is defined in `identity`, and nowhere else.
"""
