"""Limits of tests on a machine that does other work too."""

import os
import time


def stretched(limit_s: float) -> float:
    """Return a limit for a quiet machine, times how much longer work takes here by the clock: by the load, measured."""
    began_s, worked_s = time.perf_counter(), time.process_time()
    while time.process_time() - worked_s < 0.05:
        pass
    waited = (time.perf_counter() - began_s) / (time.process_time() - worked_s)
    return limit_s * max(1.0, waited, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
