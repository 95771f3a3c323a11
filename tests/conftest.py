"""What holds for all tests: imports and collected tests live to the end, so the collector leaves them alone.

A shell that starts the tests in the background has them ignore Ctrl-C; the commands under test must not inherit that.
"""

import gc
import signal

from hypothesis import HealthCheck, settings

# A busy machine makes no test fail: what is slow is seen in the durations.
settings.register_profile("dtk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dtk")
gc.set_threshold(100_000)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """A test that collects garbage is to walk its own."""
    gc.collect()
    gc.freeze()
